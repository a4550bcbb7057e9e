"""What a server sends is read within limits and as it is."""

import gzip
import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import NamedTuple

import pytest

from tta_pipeline.data import remote_files
from tta_pipeline.data.remote_files import (
    expand_braces,
    fetch_file_facts,
    list_folder,
    read_whole,
)
from tta_pipeline.errors import StreamError
from tta_pipeline_tests.loading.servers import s3_bucket, web_server

CONTENT = bytes(range(256)) * 40


class Said(NamedTuple):
    """What a server says to a request."""

    status: int = 200
    data: bytes = CONTENT
    headers: dict[str, str] = {}  # noqa: RUF012 - never changed
    states_length: bool = True


Answers = dict[str, Callable[[str], Said]]


@contextmanager
def answering(answers: Answers) -> Iterator[str]:
    """Run a server that answers each path, given the range that is asked for, and yield its URL."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            said = answers[self.path](self.headers.get("Range", ""))
            self.send_response(said.status)
            for name, value in said.headers.items():
                self.send_header(name, value)
            if said.states_length:
                self.send_header("Content-Length", str(len(said.data)))
            self.end_headers()
            self.wfile.write(said.data)

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Short pauses."""
    monkeypatch.setattr(remote_files, "_FIRST_PAUSE_S", 0.01)


@pytest.fixture(scope="module")
def web() -> Iterator[str]:
    """A server with habits."""
    answers: Answers = {
        "/stated": lambda _: Said(),
        "/empty": lambda _: Said(data=b""),
        "/packed": lambda _: Said(data=gzip.compress(CONTENT), headers={"Content-Encoding": "gzip"}),
        "/folder/": lambda _: Said(
            data=b'<a href="?C=N">by name</a> <A class=x HREF=\'a%20b.tar\'>a</A> <a href="/folder/b.tar">b</a>'
            b'<a href="/elsewhere/c.tar">c</a> <a href="../">up</a>'
        ),
    }
    with answering(answers) as url:
        yield url


@pytest.fixture(scope="module")
def bucket(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A bucket with a large and an empty object."""
    with s3_bucket("bucket", tmp_path_factory.mktemp("aws")) as found:
        found.put_object(Key="stated", Body=CONTENT)
        found.put_object(Key="empty", Body=b"")
        yield "s3://bucket"


def test_a_file_is_read_whole(web: str, bucket: str):
    """From a web server and from a bucket."""
    assert [CONTENT, CONTENT] == [read_whole(f"{place}/stated") for place in (web, bucket)]


def test_an_empty_file_is_read(web: str, bucket: str):
    """It has no first byte that a server could send."""
    assert [b"", b""] == [read_whole(f"{place}/empty") for place in (web, bucket)]


def test_a_file_that_is_said_to_be_compressed_arrives_as_it_is(web: str):
    """Its hash and its length are those of the server's file."""
    assert gzip.compress(CONTENT)[10:] == read_whole(f"{web}/packed")[10:]


def test_facts_come_in_the_order_of_the_files(bucket: str):
    """Sizes and tags."""
    found = fetch_file_facts([f"{bucket}/empty", f"{bucket}/stated"])

    assert [0, len(CONTENT)] == [each.size_bytes for each in found]
    assert all(each.tag for each in found)


def test_a_page_of_links_is_a_folder(web: str):
    """The links to what is below it, and nothing else."""
    assert ("a b.tar", "b.tar") == list_folder(f"{web}/folder")


def test_a_server_that_asks_who_we_are_is_told_by_netrc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The name and the password are those of its host, and no other server hears of them."""
    (tmp_path / "netrc").write_text("machine 127.0.0.1 login me password secret\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    for name in ("asking", "other"):
        (tmp_path / name / "files").mkdir(parents=True)
        (tmp_path / name / "files" / "a.txt").write_text(name)
    with web_server(tmp_path / "asking" / "files") as asking, web_server(tmp_path / "other" / "files") as other:
        assert b"asking" == read_whole(f"{asking.url}/a.txt")
        assert "Basic bWU6c2VjcmV0" in asking.headers()
        asking.send_to(other.url.replace("127.0.0.1", "localhost"))
        assert b"other" == read_whole(f"{asking.url}/a.txt")
        assert "Basic" not in other.headers()


@pytest.mark.parametrize(("kind", "place"), [("datasets/", "datasets/"), ("", "models/")])
def test_the_hub_lists_in_pages(monkeypatch: pytest.MonkeyPatch, kind: str, place: str):
    """All of them are read, also from a busy server, but none at another server."""

    def page(name: str, following: str = "") -> Callable[[str], Said]:
        data = json.dumps([{"type": "file", "path": f"a/{name}.tar"}, {"type": "directory", "path": "a/b"}]).encode()
        return lambda _: Said(data=data, headers={"Link": f'<{following}>; rel="next"'} if following else {})

    address = f"/api/{place}me/set/tree/main/a"
    busy = iter([Said(503)])
    second = page("2")
    answers = {
        address: page("1", f"{address}?cursor=2"),
        f"{address}?cursor=2": lambda span: next(busy, second(span)),
    }
    with answering(answers) as url:
        monkeypatch.setenv("HF_ENDPOINT", url)
        assert ("1.tar", "2.tar") == list_folder(f"hf://{kind}me/set/a")
        answers[f"{address}?cursor=2"] = page("2", "http://127.0.0.1:9/more")
        with pytest.raises(StreamError, match=rf"hf://{kind}me/set/a.*http://127.0.0.1:9/more"):
            list_folder(f"hf://{kind}me/set/a")


@pytest.mark.parametrize("numbers", ["{000000..000011}", "{0..11}", "{0000000000..0000000011}"])
def test_numbers_in_braces_have_any_width(numbers: str):
    """A range is too large if it has too many numbers."""
    found = expand_braces(f"https://h/shard-{numbers}.tar")

    assert 12 == len(found)
    assert re.fullmatch(r"https://h/shard-0*11\.tar", found[-1])
