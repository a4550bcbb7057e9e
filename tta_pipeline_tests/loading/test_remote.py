"""A shard set at a URL arrives as its manifest describes it, or not at all."""

import re
import traceback
from pathlib import Path

import numpy as np
import pytest

from tta_pipeline.data import copied_file, remote_files
from tta_pipeline.data.remote_files import expand_braces
from tta_pipeline.errors import PipelineError, StreamError
from tta_pipeline.loading.copied_shards import copy_shard_set
from tta_pipeline.loading.shards_at_url import open_location
from tta_pipeline.shards.shard_set import ShardSet
from tta_pipeline_tests.loading.servers import s3_bucket, web_server
from tta_pipeline_tests.shards.test_checked_reading import pixels


@pytest.fixture(autouse=True)
def own_folder(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """A $TMPDIR of its own, where sets at URLs are described, and short pauses."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path_factory.mktemp("tmp")))
    monkeypatch.setattr(remote_files, "_FIRST_PAUSE_S", 0.01)
    monkeypatch.setattr(copied_file, "_PAUSES_S", (0.01, 0.02))


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """An empty folder on local disk."""
    (tmp_path / "here").mkdir()
    return tmp_path / "here"


def assert_arrives(shard_set: ShardSet, location: str, here: Path) -> None:
    """The set at *location* is *shard_set*, on local disk."""
    copy_shard_set(open_location(location), here)
    found = ShardSet.open(here)
    found.require_intact()
    assert shard_set.manifest.shards == found.manifest.shards
    np.testing.assert_array_equal(pixels(shard_set), pixels(found))


def test_a_set_arrives_by_http_and_once(shard_set: ShardSet, here: Path):
    """Each byte comes once, after those of the first samples."""
    with web_server(shard_set.folder) as web:
        found = open_location(f"{web.url}/")
        asked = len(web.requests())
        copy_shard_set(found, here)

        assert len(shard_set.manifest.shards) == len(set(web.requests()[asked:])) == len(web.requests()[asked:])
    np.testing.assert_array_equal(pixels(shard_set), pixels(ShardSet.open(here)))


def test_a_set_arrives_by_s3(shard_set: ShardSet, here: Path, tmp_path: Path):
    """From a server that speaks S3, by the endpoint and the keys of the environment."""
    with s3_bucket("copied", tmp_path) as bucket, pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.delenv("AWS_PROFILE")
        address = bucket.meta.client.meta.endpoint_url
        for name, value in {"ENDPOINT_URL": address, "ACCESS_KEY_ID": "me", "SECRET_ACCESS_KEY": "secret"}.items():
            monkeypatch.setenv(f"AWS_{name}", value)
        for path in shard_set.folder.iterdir():
            bucket.upload_file(str(path), f"fog/5/{path.name}")

        assert_arrives(shard_set, "s3://copied/fog/5", here)
        found = open_location("s3://copied/fog/5")
        bucket.Object(f"fog/5/{shard_set.manifest.shards[1].name}").delete()
        with pytest.raises(StreamError, match=r"1\.tar.*\bdoes not exist\b"):
            copy_shard_set(found, here)
        with pytest.raises(PipelineError, match=r"s3://copied/fog/4\b"):
            open_location("s3://copied/fog/4")


def test_a_set_arrives_by_file_url(shard_set: ShardSet, here: Path):
    """A file URL is a folder."""
    assert_arrives(shard_set, shard_set.folder.as_uri(), here)


@pytest.mark.parametrize("fault", ["503", "cut", "short", "stall", "changed"])
def test_a_fault_that_passes_is_no_fault(shard_set: ShardSet, here: Path, monkeypatch: pytest.MonkeyPatch, fault: str):
    """A server that is busy, cuts connections, stalls, or gives too few or other bytes is asked again."""
    monkeypatch.setattr(remote_files, "_SILENCE_S", 0.7)
    with web_server(shard_set.folder) as web:
        found = open_location(web.url)
        web.commit(fault, 2)
        copy_shard_set(found, here)
    np.testing.assert_array_equal(pixels(shard_set), pixels(ShardSet.open(here)))


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("503", r"\D*\b503\b"),
        ("cut", r"\D*\b\d+\b\D*\b\d+\b"),
        ("short", r"\D*\b\d+\b\D*\b\d+\b"),
        ("changed", r".*\b[0-9a-f]{64}\b.*\b[0-9a-f]{64}\b"),
    ],
)
def test_a_fault_that_stays_is_named(shard_set: ShardSet, here: Path, fault: str, said: str):
    """The error says URL, found and expected."""
    with web_server(shard_set.folder) as web:
        found = open_location(web.url)
        web.commit(fault)
        with pytest.raises(StreamError, match=rf"{web.url}/.*\.tar{said}"):
            copy_shard_set(found, here)


@pytest.mark.parametrize("name", ["samples.parquet", "manifest.json"])
def test_records_are_proven_too(shard_set: ShardSet, name: str):
    """A damaged index or manifest is named by its URL."""
    path = shard_set.folder / name
    path.write_bytes(path.read_bytes()[:-20])
    with web_server(shard_set.folder) as web, pytest.raises(PipelineError, match=f"{web.url}/{name}"):
        open_location(web.url)


def test_a_server_that_is_not_there_is_named():
    """No traceback of a library, but the address and the kind of fault."""
    with pytest.raises(PipelineError, match=r"http://127\.0\.0\.1:9/fog/5/manifest\.json.*\bconnection\b"):
        open_location("http://127.0.0.1:9/fog/5")


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
    with pytest.raises(StreamError, match=re.escape(found)) as refusal:
        open_location(location)

    assert "secret" not in "".join(traceback.format_exception(refusal.value))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["a#b", "a?b", "a{1..3}", "a b", "a::b", "a|b", "é"])
def test_a_folder_may_have_any_name(shard_set: ShardSet, tmp_path: Path, name: str):
    """What is special in a URL is a character in a path."""
    folder = shard_set.folder.rename(tmp_path / name)

    assert (str(folder),) == expand_braces(str(folder))
    assert shard_set.manifest == open_location(str(folder)).manifest


def test_braces_expand():
    """As a shell and webdataset expand them."""
    assert tuple(f"s3://b/{c}/{s}" for c in ("fog", "snow") for s in "12") == expand_braces("s3://b/{fog,snow}/{1..2}")
    assert ("http://h/a",) == expand_braces("http://h/a")
    for wrong, said in (("s3://b/{1..9999}/{1..9999}", r"\b10000\b"), ("s3://b/{1..2", r"\{1\.\.5\}")):
        with pytest.raises(StreamError, match=said):
            expand_braces(wrong)
