"""What a server sends is read within limits and as it is."""

import gzip
import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import NamedTuple

import pytest

from tta_pipeline.data import remote_files, server_requests
from tta_pipeline.data.remote_files import (
    expand_braces,
    fetch_file_facts,
    list_folder,
    read_in_pieces,
    read_range,
    read_whole,
)
from tta_pipeline.data.server_requests import run_and_wait
from tta_pipeline.errors import StreamError
from tta_pipeline_tests.loading.servers import s3_server

CONTENT = bytes(range(256)) * 40
LIMIT = len(CONTENT)


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


def part(start: int) -> Said:
    """Return an answer that says it is ten bytes from *start* on."""
    stated = {"Content-Range": f"bytes {start}-{start + 9}/{len(CONTENT)}"}
    return Said(status=206, data=CONTENT[start : start + 10], headers=stated)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Short pauses."""
    monkeypatch.setattr(server_requests, "_PAUSES_S", (0.0, 0.01))


@pytest.fixture(scope="module")
def web() -> Iterator[str]:
    """A server with habits."""
    answers: Answers = {
        "/stated": lambda _: Said(),
        "/unstated": lambda _: Said(states_length=False),
        "/empty": lambda _: Said(data=b""),
        "/packed": lambda _: Said(data=gzip.compress(CONTENT), headers={"Content-Encoding": "gzip"}),
        "/part": lambda asked: part(int(asked.removeprefix("bytes=").partition("-")[0])),
        "/other": lambda _: part(20),
        "/folder/": lambda _: Said(
            data=b'<a href="?C=N">by name</a> <A class=x HREF=\'a%20b.tar\'>a</A> <a href="/folder/b.tar">b</a>'
            b'<a href="/elsewhere/c.tar">c</a> <a href="../">up</a>'
        ),
    }
    with answering(answers) as url:
        yield url


@pytest.fixture(scope="module")
def bucket() -> Iterator[str]:
    """A bucket with a large and an empty object."""
    import s3fs

    with s3_server() as address, pytest.MonkeyPatch.context() as patch:
        for name, value in {"ENDPOINT_URL": address, "ACCESS_KEY_ID": "me", "SECRET_ACCESS_KEY": "secret"}.items():
            patch.setenv(f"AWS_{name}", value)
        s3fs.S3FileSystem.clear_instance_cache()
        file_system = s3fs.S3FileSystem()
        file_system.mkdir("s3://bucket")
        file_system.pipe("s3://bucket/stated", CONTENT)
        file_system.pipe("s3://bucket/empty", b"")
        yield "s3://bucket"
        s3fs.S3FileSystem.clear_instance_cache()


@pytest.mark.parametrize("name", ["stated", "unstated"])
def test_no_answer_of_the_web_fills_the_memory(web: str, name: str, monkeypatch: pytest.MonkeyPatch):
    """Whether or not it says how long it is; a file of exactly the limit arrives."""
    monkeypatch.setattr(remote_files, "_MOST_WHOLE_BYTES", LIMIT)
    assert CONTENT == run_and_wait(read_whole(f"{web}/{name}"))
    monkeypatch.setattr(remote_files, "_MOST_WHOLE_BYTES", LIMIT - 1)
    with pytest.raises(StreamError, match=f"{web}/{name}"):
        run_and_wait(read_whole(f"{web}/{name}"))


def test_an_object_of_a_bucket_is_read_whole_and_in_part(bucket: str):
    """A range that goes beyond its end is no answer."""
    assert CONTENT == run_and_wait(read_whole(f"{bucket}/stated"))
    assert CONTENT[7:9] == run_and_wait(read_range(f"{bucket}/stated", 7, 9))
    with pytest.raises(StreamError, match=rf"{bucket}/stated.*\b5\b.*\b9\b.*\b{LIMIT - 5}\b"):
        run_and_wait(read_range(f"{bucket}/stated", LIMIT - 5, LIMIT + 4))


def test_an_empty_file_is_read(web: str, bucket: str):
    """It has no first byte that a server could send."""
    assert [b"", b""] == [run_and_wait(read_whole(f"{place}/empty")) for place in (web, bucket)]


def test_a_file_that_is_said_to_be_compressed_arrives_as_it_is(web: str):
    """Its hash and its length are those of the server's file."""
    assert gzip.compress(CONTENT)[10:] == run_and_wait(read_whole(f"{web}/packed"))[10:]


def test_another_range_than_the_one_asked_for_is_no_answer(web: str):
    """It has the right length, and other bytes."""
    assert CONTENT[30:40] == run_and_wait(read_range(f"{web}/part", 30, 40))
    with pytest.raises(StreamError, match=rf"{web}/other.*\b20\b.*\b10\b.*\b30\b"):
        run_and_wait(read_range(f"{web}/other", 30, 40))


def test_facts_come_in_the_order_of_the_files(bucket: str):
    """Sizes and tags."""
    found = fetch_file_facts([f"{bucket}/empty", f"{bucket}/stated"])

    assert [0, LIMIT] == [each.size_bytes for each in found]
    assert all(each.tag for each in found)


def test_a_page_of_links_is_a_folder(web: str):
    """The links to what is below it, and nothing else."""
    assert ("a b.tar", "b.tar") == run_and_wait(list_folder(f"{web}/folder"))


def test_the_hub_lists_in_pages(monkeypatch: pytest.MonkeyPatch):
    """All of them are read, but none at another server."""

    def page(name: str, following: str = "") -> Callable[[str], Said]:
        data = json.dumps([{"type": "file", "path": f"a/{name}.tar"}, {"type": "directory", "path": "a/b"}]).encode()
        return lambda _: Said(data=data, headers={"Link": f'<{following}>; rel="next"'} if following else {})

    address = "/api/datasets/me/set/tree/main/a"
    answers = {address: page("1", f"{address}?cursor=2"), f"{address}?cursor=2": page("2")}
    with answering(answers) as url:
        monkeypatch.setenv("HF_ENDPOINT", url)
        assert ("1.tar", "2.tar") == run_and_wait(list_folder("hf://datasets/me/set/a"))
        answers[f"{address}?cursor=2"] = page("2", "http://127.0.0.1:9/more")
        with pytest.raises(StreamError, match=r"hf://datasets/me/set/a.*http://127.0.0.1:9/more"):
            run_and_wait(list_folder("hf://datasets/me/set/a"))


def test_pieces_arrive_in_order_whatever_comes_first(monkeypatch: pytest.MonkeyPatch):
    """Several are read at once; the first error ends it."""
    monkeypatch.setattr("tta_pipeline.data.remote_files._PIECE_BYTES", 100)
    now, most = 0, 0

    async def read(start: int, end: int) -> bytes:
        nonlocal now, most
        now, most = now + 1, max(most, now + 1)
        await server_requests.asyncio.sleep(0.02 if start % 200 else 0)
        now -= 1
        return CONTENT[start:end]

    async def fail(start: int, end: int) -> bytes:
        if start == 300:
            raise StreamError("the fourth")
        return await read(start, end)

    taken: list[bytes] = []
    run_and_wait(read_in_pieces(read, 950, taken.append))
    assert (CONTENT[:950], 10) == (b"".join(taken), len(taken))
    assert 1 < most <= 5
    with pytest.raises(StreamError, match="the fourth"):
        run_and_wait(read_in_pieces(fail, 950, taken.append))


@pytest.mark.parametrize("numbers", ["{000000..000011}", "{0..11}", "{0000000000..0000000011}"])
def test_numbers_in_braces_have_any_width(numbers: str):
    """A range is too large if it has too many numbers."""
    found = expand_braces(f"https://h/shard-{numbers}.tar")

    assert 12 == len(found)
    assert re.fullmatch(r"https://h/shard-0*11\.tar", found[-1])
