"""Files at http, https, s3, gs and hf URLs: checks of URLs, facts about files, listing folders, and reading ranges.

A URL names a file without chain, pipe or shell, and contains no secret. The Hub's token and address come from HF_TOKEN
and HF_ENDPOINT; for other keys see `server_requests`.
"""

import asyncio
import json
import os
import re
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager
from itertools import islice
from typing import Any, TypeVar
from urllib.parse import quote, unquote, urljoin, urlsplit

from tta_pipeline.data.server_requests import (
    FileFacts,
    NoAnswerError,
    WebAnswer,
    ask_patiently,
    gather_bounded,
    open_file_system,
    open_web_answer,
    run_and_wait,
)
from tta_pipeline.errors import StreamError
from tta_pipeline.util.braces import expand

REMOTE_SCHEMES = ("http", "https", "s3", "gs", "hf")
_MAX_EXPANDED = 10_000
_MOST_WHOLE_BYTES = 2**32
"""Most bytes of a web server's answer that is read whole; the index of ten million samples has 1.5e9."""
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):")
_REFUSED = re.compile(r"::|[\s|{}?#\\@$`<>\"]|[^\x21-\x7e]|/\.\.?(/|$)")
_REFUSED_OF_HUB = re.compile(_REFUSED.pattern.replace("@", ""))  # hf://datasets/owner/name@revision
_MOST_LISTING_BYTES = 2**26
_MOST_LISTED = 100_000
_PIECE_BYTES = 2**22
_NUM_PIECES_AHEAD = 4
_LINK = re.compile(r"""<a\s(?:[^>]*?\s)?href=["']([^"']+)""", re.IGNORECASE)

Result = TypeVar("Result")


class NoSuchFileError(StreamError):
    """A server says that it has no such file."""


def scheme_of(location: str) -> str:
    """Return the scheme of *location* in lower case; empty if *location* is a path."""
    match = _SCHEME.match(location)
    return match[1].lower() if match else ""


def validate_url(location: str, *, expected: tuple[str, ...] = REMOTE_SCHEMES) -> str:
    """Return the URL *location* without a trailing slash.

    Raises:
        StreamError: its scheme is none of *expected*, or it contains characters that are not allowed.
    """
    scheme = scheme_of(location)
    rest = location[len(scheme) + 1 :]
    if scheme not in expected or not rest.startswith("//"):
        raise StreamError(
            f"found a location that begins with '{scheme}:'; expected a folder, or a URL of {', '.join(expected)}: "
            "write ./ before the name of a folder with a colon"
        )
    rest = rest[2:].rstrip("/")
    if refused := (_REFUSED_OF_HUB if scheme == "hf" else _REFUSED).search(rest):
        raise StreamError(
            f"found {refused[0]!r} in a {scheme} URL; expected only host or bucket and path, without key, query, "
            "chain or pattern: give keys in the environment or ~/.netrc"
        )
    if scheme != "file" and (not rest or rest.startswith("/")):
        raise StreamError(f"found {location}; expected a host or bucket after {scheme}://")
    return f"{scheme}://{rest}"


def expand_braces(location: str) -> tuple[str, ...]:
    """Return the locations that a URL with braces expands to, in order: ten for `s3://b/{fog,snow}/{1..5}`.

    A path on disk is a single location: its braces are plain characters, and the shell expands its own.

    Raises:
        StreamError: the braces are not closed, or expand to more than 10,000 locations.
    """
    if "://" not in location:
        return (location,)
    try:
        found = expand(location, most=_MAX_EXPANDED)
    except ValueError:
        raise StreamError("found a URL with unbalanced braces; expected {a,b} or {1..5}: close them") from None
    if not found:
        raise StreamError(f"found braces for more than {_MAX_EXPANDED} locations; expected one per cell: correct them")
    return found


async def read_range(url: str, start: int, end: int, *, facts: FileFacts | None = None) -> bytes:
    """Return the bytes of the file at *url* from *start* to *end*; retry a few times after temporary failures.

    Args:
        url: Address of the file.
        start: First byte.
        end: End of the range, exclusive.
        facts: Facts that the file must have; None: they are not compared.
    """

    async def ask() -> tuple[bytes, FileFacts]:
        data, first, found = await _read_once(url, start, end)
        if len(data) != end - start:
            raise NoAnswerError(f"{len(data)} bytes")
        if first not in (start, None):
            raise NoAnswerError(f"bytes from byte {first} on")
        return data, found

    data, found = await _ask(url, ask, expected=f"{end - start} bytes from byte {start} on")
    if facts is not None:
        require_same_file(url, found, facts)
    return data


async def read_whole(url: str) -> bytes:
    """Return the content of the file at *url*; retry a few times after temporary failures.

    Raises:
        NoSuchFileError: the server has no such file.
        StreamError: the file cannot be read.
    """

    async def ask() -> bytes:
        if _is_bucket(url):
            return await _read_object(url, 0, None)
        async with _open_web_answer(url) as answer:
            return await answer.read(_MOST_WHOLE_BYTES)

    return await _ask(url, ask, expected="a file")


async def read_in_pieces(
    read: Callable[[int, int], Coroutine[Any, Any, bytes]], size_bytes: int, take: Callable[[bytes], object]
) -> None:
    """Read a file in pieces, several at once, and give them to *take*, in order, in a thread.

    Args:
        read: Returns the bytes from a start to an end.
        size_bytes: Size of the file.
        take: Writes a piece, or hashes it; meanwhile the next pieces are read.

    Raises:
        Exception: *read* or *take* raised it.
    """
    starts = iter(range(0, size_bytes, _PIECE_BYTES))
    reading: deque[asyncio.Task[bytes]] = deque()

    def read_ahead(num_pieces: int) -> None:
        for start in islice(starts, num_pieces):
            reading.append(group.create_task(read(start, min(start + _PIECE_BYTES, size_bytes))))

    try:
        async with asyncio.TaskGroup() as group:
            read_ahead(_NUM_PIECES_AHEAD)
            while reading:
                await asyncio.to_thread(take, await reading.popleft())
                read_ahead(1)
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None


def fetch_file_facts(urls: Sequence[str]) -> list[FileFacts]:
    """Return the servers' facts about the files at *urls*; for web URLs, from requests for the first byte."""
    return run_and_wait(gather_bounded([_fetch_facts(url) for url in urls]))


async def _fetch_facts(url: str) -> FileFacts:
    if _is_bucket(url):
        return await _ask(url, lambda: _object_facts(url), expected="an object")

    async def ask() -> FileFacts:
        async with _open_web_answer(url, 0, 1) as answer:
            if not answer.is_range or answer.facts.size_bytes < 0:
                raise NoAnswerError(f"{answer.length} bytes instead of a range")
            await answer.read(1)  # the connection is then free for the next request
            return answer.facts

    return await _ask(url, ask, expected="a range")


async def list_folder(url: str) -> tuple[str, ...]:
    """Return the names of the files in the folder at *url*: of a bucket or the Hub, or the links of a web page."""
    below = unquote(_path_of(url))

    async def names() -> Sequence[str]:
        if _is_bucket(url):
            listed = await _bucket(url)._ls(f"{url}/", detail=False)  # noqa: SLF001 - so fsspec names coroutines
            return [str(name) for name in listed]
        if urlsplit(url).scheme == "hf":
            return await _list_hub(url)
        async with _open_web_answer(f"{url}/") as answer:
            data = await answer.read(_MOST_LISTING_BYTES)
        links = (urljoin(f"{url}/", link) for link in _LINK.findall(data.decode("utf-8", "ignore")))
        return [path for path in map(_path_of, links) if unquote(path.rstrip("/")).startswith(f"{below}/")]

    found = await _ask(url, names, expected="a folder that can be listed")
    return tuple(sorted({unquote(name).rstrip("/").rpartition("/")[2] for name in found}))


def require_same_file(url: str, found: FileFacts, expected: FileFacts) -> None:
    """Refuse a file whose size or tag has changed; a tag that is missing on one side is not compared."""
    if problem := describe_change(found, expected):
        raise StreamError(f"{url}: {problem}: the file has changed on the server: materialize tar_shards again")


def describe_change(found: FileFacts, expected: FileFacts) -> str:
    """Return how *found* differs from *expected* in words; empty if they agree."""
    if found.size_bytes >= 0 and found.size_bytes != expected.size_bytes:
        return f"found {found.size_bytes} bytes; expected {expected.size_bytes}"
    if found.tag and expected.tag and found.tag != expected.tag:
        return f"found the tag {found.tag}; expected {expected.tag}"
    return ""


async def _ask(url: str, ask: Callable[[], Awaitable[Result]], *, expected: str) -> Result:
    try:
        return await ask_patiently(ask)
    except NoAnswerError as error:
        if error.is_missing:
            raise NoSuchFileError(
                f"{url}: found FileNotFoundError; expected {expected}: check the address, and the rights to read it"
            ) from None
        raise StreamError(
            f"{url}: found {error}; expected {expected}: check the address, the rights to read it, and whether the "
            "server serves ranges"
        ) from None


async def _read_once(url: str, start: int, end: int) -> tuple[bytes, int | None, FileFacts]:
    """Return the bytes from *start* to *end*, the first byte that the server says it sent, and its facts."""
    if _is_bucket(url):
        return await _read_object(url, start, end), start, FileFacts(-1, "")
    async with _open_web_answer(url, start, end) as answer:
        return await answer.read(end - start), answer.start, answer.facts


def _open_web_answer(url: str, start: int = 0, end: int | None = None) -> AbstractAsyncContextManager[WebAnswer]:
    """Ask a web server or the Hub for the file at *url*, or its bytes from *start* to *end*."""
    headers = {} if end is None else {"Range": f"bytes={start}-{end - 1}"}
    if urlsplit(url).scheme == "hf":
        return open_web_answer(_hub_address(url), headers | _hub_headers())
    return open_web_answer(_quote_path(url), headers)


async def _list_hub(url: str) -> list[str]:
    """Return the paths of the files in a folder of the Hub, which lists a thousand on a page."""
    address, paths = _hub_address(url, listing=True), list[str]()
    while address and len(paths) < _MOST_LISTED:
        async with open_web_answer(address, _hub_headers()) as answer:
            data, following = await answer.read(_MOST_LISTING_BYTES), answer.next_page
        if following and urlsplit(following)[:2] != urlsplit(address)[:2]:  # it would get the token
            raise StreamError(f"{url}: found the next page at {following}; expected it at the same server")
        paths += [entry["path"] for entry in json.loads(data) if entry["type"] == "file"]
        address = following
    return paths


def _is_bucket(url: str) -> bool:
    return urlsplit(url).scheme in ("s3", "gs")


def _bucket(url: str) -> Any:
    return open_file_system(urlsplit(url).scheme)


async def _read_object(url: str, start: int, end: int | None) -> bytes:
    """Return the bytes of an object from *start* to *end*, or to its end; fewer if it ends earlier."""
    try:
        data: bytes = await _bucket(url)._cat_file(url, start=start, end=end)  # noqa: SLF001 - so fsspec names coroutines
    except (FileNotFoundError, PermissionError):
        raise
    except OSError:  # an empty object has no range, and each library says so in another way
        if start or (await _object_facts(url)).size_bytes:
            raise
        return b""
    return data


async def _object_facts(url: str) -> FileFacts:
    bucket = _bucket(url)
    bucket.invalidate_cache()
    info = await bucket._info(url)  # noqa: SLF001 - so fsspec names coroutines
    tag = next((str(info[name]) for name in ("ETag", "etag", "md5Hash", "LastModified") if info.get(name)), "")
    return FileFacts(int(info["size"]), tag)


def _path_of(url: str) -> str:
    return urlsplit(url).path


def _quote_path(url: str) -> str:
    scheme, _, rest = url.partition("://")
    host, slash, path = rest.partition("/")
    return f"{scheme}://{host}{slash}{quote(path, safe='/%')}"


def _hub_address(url: str, *, listing: bool = False) -> str:
    """Return the web address of `hf://datasets/<owner>/<name>[@<revision>]/<path>`, or of its listing."""
    parts = url.removeprefix("hf://").split("/")
    kind = f"{parts.pop(0)}/" if parts[0] in ("datasets", "spaces") else ""
    if len(parts) < 2:
        raise StreamError(f"found {url}; expected hf://datasets/<owner>/<name>/<path>: correct it")
    name, _, revision = parts[1].partition("@")
    repository, path = f"{parts[0]}/{name}", quote("/".join(parts[2:]))
    endpoint = os.environ.get("HF_ENDPOINT", "https://huggingface.co").rstrip("/")
    if listing:
        return f"{endpoint}/api/{kind or 'models/'}{repository}/tree/{revision or 'main'}/{path}"
    return f"{endpoint}/{kind}{repository}/resolve/{revision or 'main'}/{path}"


def _hub_headers() -> dict[str, str]:
    token = os.environ.get("HF_TOKEN")
    return {"Authorization": f"Bearer {token}"} if token else {}
