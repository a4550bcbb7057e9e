"""A server is asked for what the user named, and cannot send us to another."""

import hashlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import yaml

from tta_pipeline.data.redirects import REDIRECT_HOSTS_VARIABLE, redirect_problem
from tta_pipeline.data.remote_files import list_folder
from tta_pipeline.data.server_requests import run_and_wait
from tta_pipeline.errors import StreamError
from tta_pipeline.shards.shard_set import ShardSet
from tta_pipeline_tests.conftest import launcher
from tta_pipeline_tests.loading.servers import Web, web_server

ARCHIVE = b"an archive" * 1000


@pytest.fixture
def two(shard_set: ShardSet, tmp_path: Path) -> Iterator[tuple[Web, Web]]:
    """Two servers of the same shard set and archive, on two ports, each with a folder and logs of its own."""
    folders = []
    for name in ("named", "other"):
        shutil.copytree(shard_set.folder, tmp_path / name / "files" / "datasets" / "o" / "n")
        (tmp_path / name / "files" / "noise.tar").write_bytes(ARCHIVE)
        folders.append(tmp_path / name / "files")
    with web_server(folders[0]) as named, web_server(folders[1]) as other:
        yield named, other


def typed(folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the command line in *folder*, as its user does."""
    environment = os.environ | {"TTA_DATA_ROOT": str(folder / "data"), "HF_TOKEN": "secret"} | environment
    return launcher().run(["tta-pipeline", *arguments], environment, timeout_s=600, folder=folder)


def command(how: str, web: Web, folder: Path) -> list[str]:
    """Return what opens a URL of *web*, each in its own way."""
    (folder / "data" / "benchmarks").mkdir(parents=True, exist_ok=True)
    archives = {"noise.tar": {"url": f"{web.url}/noise.tar", "md5": hashlib.md5(ARCHIVE).hexdigest(),
                              "size_bytes": len(ARCHIVE), "shifts": ["dust"]}}  # fmt: skip
    (folder / "data" / "benchmarks" / "dusty.shifts.yaml").write_text(
        yaml.safe_dump({"names": ["dust"], "archives": archives, "homepage": "https://example.org"})
    )
    return {
        "fetch": ["shards", "fetch", f"{web.url}/datasets/o/n", "fetched"],
        "fetch from the Hub": ["shards", "fetch", "hf://datasets/o/n", "fetched"],
        "loader-bench": ["shards", "bench", f"{web.url}/datasets/o/n", "--loader", "indexed", "--repeats", "1"],
        "download": ["download", "dusty", "downloaded"],
    }[how]


HOW = ("fetch", "fetch from the Hub", "loader-bench", "download")


@pytest.mark.parametrize("how", HOW)
def test_no_server_sends_us_to_another(two: tuple[Web, Web], tmp_path: Path, how: str):
    """The answer names both, nothing is asked of the other, and nothing arrives."""
    named, other = two
    named.send_to(other.url)

    done = typed(tmp_path, *command(how, named, tmp_path), HF_ENDPOINT=named.url)

    assert done.returncode == 1, done.stdout + done.stderr
    said = f"found a redirect from {named.url} to {other.url}; expected no redirect to another host or port"
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert named.headers()
    assert not other.headers()
    assert not list((tmp_path / "fetched").rglob("*.tar"))


@pytest.mark.parametrize(
    "how", [pytest.param(how, marks=pytest.mark.slow if how == "loader-bench" else ()) for how in HOW]
)
def test_a_server_may_send_us_to_itself_and_to_whom_the_user_names(two: tuple[Web, Web], tmp_path: Path, how: str):
    """Everything arrives, and the Hub's token stays with the Hub."""
    named, other = two
    named.send_to("/moved")
    first = typed(tmp_path, *command(how, named, tmp_path), HF_ENDPOINT=named.url)
    named.send_to(other.url)
    for folder in ("fetched", "downloaded"):
        shutil.rmtree(tmp_path / folder, ignore_errors=True)

    place = urlsplit(other.url).netloc
    second = typed(
        tmp_path, *command(how, named, tmp_path), HF_ENDPOINT=named.url, TTA_REDIRECT_HOSTS=f"x.org, {place}"
    )

    assert first.returncode == 0, first.stderr
    assert second.returncode == 0, second.stderr
    assert other.headers()
    assert ("secret" in named.headers()) == (how == "fetch from the Hub")
    assert "secret" not in other.headers()


def test_the_names_in_a_folder_are_those_of_its_server(two: tuple[Web, Web]):
    """A page of links is what fsspec asks for, and it is not followed elsewhere either."""
    named, other = two
    url = f"{named.url}/datasets/o/n"
    names = run_and_wait(list_folder(url))
    named.send_to("/moved")
    moved = run_and_wait(list_folder(url))
    named.send_to(other.url)

    with pytest.raises(StreamError, match=f"a redirect from {named.url} to {other.url}"):
        run_and_wait(list_folder(url))

    assert names == moved
    assert "manifest.json" in names
    assert not other.headers()


@pytest.mark.parametrize(
    ("here", "there", "is_allowed"),
    [
        ("http://a.org/x", "http://a.org:80/y", True),
        ("http://a.org/x", "https://a.org/x", True),
        ("http://a.org:8000/x", "https://a.org/x", False),
        ("https://a.org/x", "http://a.org/x", False),
        ("https://a.org/x", "https://a.org:8443/x", False),
        ("https://a.org/x", "https://www.a.org/x", False),
        ("https://a.org/x", "http://named.org/x", False),
        ("https://a.org/x", "https://named.org/x", True),
        ("https://a.org/x", "https://named.org:8443/x", False),
        ("https://a.org/x", "https://other.org:8443/x", True),
        ("https://a.org/x", "https://cas-bridge.xethub.hf.co/x", False),
        ("https://huggingface.co/x", "https://cas-bridge.xethub.hf.co/x", True),
        ("https://huggingface.co/x", "http://cas-bridge.xethub.hf.co/x", False),
        ("https://huggingface.co/x", "https://evilhf.co/x", False),
        ("https://huggingface.co.evil.org/x", "https://cdn-lfs.huggingface.co/x", False),
        ("https://evilhuggingface.co/x", "https://cdn-lfs.huggingface.co/x", False),
        ("http://a.org/x", "http://a.org@evil.org/x", False),
        ("http://a.org/x", "http://evil.org\\@a.org/x", False),
        ("http://a.org/x", "file:///etc/passwd", False),
        ("http://a.org/x", "ftp://a.org/x", False),
        ("http://a.org/x", "http://[::1/x", False),
        ("http://a.org/x", "http://a.org:99999/x", False),
        ("http://127.0.0.1/x", "http://169.254.169.254/latest/meta-data", False),
    ],
)
def test_where_a_server_may_send_us(here: str, there: str, *, is_allowed: bool, monkeypatch: pytest.MonkeyPatch):
    """To itself, encrypted or as before, from the Hub to the Hub's other hosts, and where the user says."""
    monkeypatch.setenv(REDIRECT_HOSTS_VARIABLE, "named.org:443,other.org")

    assert is_allowed == (redirect_problem(here, there) == "")
