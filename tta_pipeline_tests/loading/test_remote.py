"""A shard set at a URL arrives as its manifest describes it, or not at all."""

import re
import traceback
from pathlib import Path

import numpy as np
import pytest

from tta_pipeline.data.remote_files import expand_braces
from tta_pipeline.errors import StreamError
from tta_pipeline.loading.staging import Stage
from tta_pipeline.shards.shard_set import ShardSet
from tta_pipeline_tests.loading.servers import s3_bucket, web_server
from tta_pipeline_tests.shards.test_checked_reading import pixels


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    """An empty stage."""
    return Stage(root=tmp_path / "stage", limit_bytes=10**8, tell=lambda _: None)


def assert_arrives(shard_set: ShardSet, location: str, stage: Stage) -> None:
    """The set at *location* is *shard_set*, on local disk."""
    with stage.shard_set(location) as staged:
        assert stage.folder / shard_set.manifest.sha256 == staged.folder
        assert shard_set.manifest == staged.manifest
        np.testing.assert_array_equal(pixels(shard_set), pixels(staged))


def assert_nothing_arrives(location: str, stage: Stage, found: str) -> None:
    """Staging fails and names what was found, and nothing but the lock is left."""
    with pytest.raises(StreamError, match=found), stage.shard_set(location):
        pass
    assert not stage.root.exists() or {"lock", "CACHEDIR.TAG"} == {path.name for path in stage.folder.iterdir()}


def test_a_set_arrives_by_http_and_once(shard_set: ShardSet, stage: Stage):
    """Each byte comes once, and the second reader asks for no shard."""
    with web_server(shard_set.folder) as web:
        assert_arrives(shard_set, web.url, stage)
        requests = web.requests()
        assert_arrives(shard_set, f"{web.url}/", stage)

        assert requests == web.requests()
    assert len(requests) == len(set(requests)) == len(shard_set.manifest.shards)


def test_a_set_arrives_by_s3(shard_set: ShardSet, stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """From a server that speaks S3, by the endpoint and the keys of the environment."""
    with s3_bucket("shards", tmp_path) as bucket:
        monkeypatch.delenv("AWS_PROFILE")
        address = bucket.meta.client.meta.endpoint_url
        for name, value in {"ENDPOINT_URL": address, "ACCESS_KEY_ID": "me", "SECRET_ACCESS_KEY": "secret"}.items():
            monkeypatch.setenv(f"AWS_{name}", value)
        for path in shard_set.folder.iterdir():
            bucket.upload_file(str(path), f"fog/5/{path.name}")

        assert_arrives(shard_set, "s3://shards/fog/5", stage)
        bucket.Object(f"fog/5/{shard_set.manifest.shards[1].name}").delete()
        empty = Stage(root=stage.root / "other", limit_bytes=10**8, tell=stage.tell)
        assert_nothing_arrives("s3://shards/fog/5", empty, r"1\.tar.*\bno such file\b")
        assert_nothing_arrives("s3://shards/fog/4", empty, r"s3://shards/fog/4/manifest\.json.*\bno such file\b")


def test_a_set_arrives_by_file_url(shard_set: ShardSet, stage: Stage):
    """A file URL is a folder."""
    assert_arrives(shard_set, shard_set.folder.as_uri(), stage)


@pytest.mark.parametrize("fault", ["503", "cut", "changed"])
def test_a_fault_that_passes_is_no_fault(shard_set: ShardSet, stage: Stage, fault: str):
    """A server that is busy, cuts connections or gives other bytes is asked again."""
    with web_server(shard_set.folder, fault, times=1) as web:
        assert_arrives(shard_set, web.url, stage)


@pytest.mark.parametrize(
    ("fault", "found"),
    [
        ("503", r"\D*\b503\b"),
        ("cut", r"\D*\b\d+\b\D*\b\d+\b"),
        ("short", r"\D*\b\d+\b\D*\b\d+\b"),
        ("changed", r".*\b[0-9a-f]{64}\b.*\b[0-9a-f]{64}\b"),
    ],
)
def test_a_fault_that_stays_is_named(shard_set: ShardSet, stage: Stage, fault: str, found: str):
    """The error says URL, found and expected, and nothing half is left."""
    with web_server(shard_set.folder, fault) as web:
        assert_nothing_arrives(web.url, stage, rf"{web.url}/.*\.tar{found}")


@pytest.mark.parametrize("name", ["samples.parquet", "manifest.json"])
def test_records_are_proven_too(shard_set: ShardSet, stage: Stage, name: str):
    """A damaged index or manifest is named by its URL."""
    path = shard_set.folder / name
    path.write_bytes(path.read_bytes()[:-20])
    with web_server(shard_set.folder) as web:
        assert_nothing_arrives(web.url, stage, f"{web.url}/{name}")


def test_a_server_that_is_not_there_is_named(stage: Stage):
    """No traceback of a library, but the address and the kind of fault."""
    assert_nothing_arrives(
        "http://127.0.0.1:9/fog/5", stage, r"http://127\.0\.0\.1:9/fog/5/manifest\.json.*\bconnection\b"
    )


def test_what_does_not_fit_is_refused(shard_set: ShardSet, tmp_path: Path):
    """A remote set cannot be read from its place, so the limit must be raised."""
    small = Stage(root=tmp_path / "stage", limit_bytes=shard_set.manifest.shard_bytes - 1, tell=lambda _: None)
    with web_server(shard_set.folder) as web:
        assert_nothing_arrives(web.url, small, rf"{web.url}\b.*\b{small.limit_bytes + 1}\b.*\b{small.limit_bytes}\b")


@pytest.mark.parametrize(
    ("location", "found"),
    [
        ("pipe:touch executed", "'pipe:'"), ("pipe://touch executed", "'pipe:'"), ("PIPE:touch executed", "'pipe:'"),
        ("http:touch", "'http:'"), ("javascript://a/b", "'javascript:'"), ("ftp://host/a", "'ftp:'"),
        ("memory://a", "'memory:'"), ("simplecache::s3://b/c", "'simplecache:'"), ("zip://a::http://b/c", "'zip:'"),
        ("s3://b/a|touch executed", "'|'"), ("s3://b/`touch executed`", "'`'"), ("s3://b/$(touch executed)", "'$'"),
        ("s3://b/${WDS_X}", "'$'"), ("s3://b/../c", "'/../'"), ("s3://b/a/..", "'/..'"), ("s3://b/a#secret", "'#'"),
        ("http://me:secret@host/a", "'@'"), ("https://host/a?X-Amz-Signature=secret", "'?'"),
        ("s3://b/{fog,snow}", "'{'"), ("s3://", "s3://"), ("file://host/a", "file://host/a"), ("gs:///a", "gs:///a"),
        ("http://host/a\nb", r"'\n'"), ("http://hóst/a", "'ó'"),
    ],
)  # fmt: skip
def test_what_is_no_plain_url_is_refused(location: str, found: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """No shell starts, no chain is followed, and no secret is repeated."""
    monkeypatch.chdir(tmp_path)
    stage = Stage(root=tmp_path / "stage", limit_bytes=0, tell=lambda _: None)
    with pytest.raises(StreamError, match=re.escape(found)) as refusal, stage.shard_set(location):
        pass

    assert "secret" not in "".join(traceback.format_exception(refusal.value))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["a#b", "a?b", "a{1..3}", "a b", "a::b", "a|b", "é"])
def test_a_folder_may_have_any_name(shard_set: ShardSet, stage: Stage, tmp_path: Path, name: str):
    """What is special in a URL is a character in a path."""
    folder = shard_set.folder.rename(tmp_path / name)

    assert (str(folder),) == expand_braces(str(folder))
    with stage.shard_set(str(folder)) as staged:
        assert shard_set.manifest == staged.manifest


def test_braces_expand():
    """As a shell and webdataset expand them."""
    assert tuple(f"s3://b/{c}/{s}" for c in ("fog", "snow") for s in "12") == expand_braces("s3://b/{fog,snow}/{1..2}")
    assert ("http://h/a",) == expand_braces("http://h/a")
    for wrong, said in (("s3://b/{1..9999}/{1..9999}", r"\b10000\b"), ("s3://b/{1..2", r"\{1\.\.5\}")):
        with pytest.raises(StreamError, match=said):
            expand_braces(wrong)
