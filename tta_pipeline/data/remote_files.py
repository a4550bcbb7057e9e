"""Files at http, https, s3, gs and hf URLs: checks of URLs, facts about files, and reading byte ranges.

A URL is opened only by the library of its scheme, without chain, pipe or shell, and contains no secret. Keys, profiles
and endpoints come from the usual places of these libraries: AWS_* and GOOGLE_* variables, ~/.netrc, fsspec's settings,
and for hf the variables HF_TOKEN and HF_ENDPOINT. Redirects to another host are not followed; see `redirects`.
"""

import asyncio
import json
import os
import re
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import wait
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, TypeVar
from urllib.parse import quote, unquote, urljoin, urlsplit

from tta_pipeline.data.redirects import redirect_problem
from tta_pipeline.errors import StreamError

REMOTE_SCHEMES = ("http", "https", "s3", "gs", "hf")
_MAX_EXPANDED = 10_000
MAX_WHOLE_FILE_BYTES = 2**32
"""Most bytes of a file that is read whole; the index of a shard set with ten million samples has 1.5e9."""
_HUGE_RANGE = re.compile(r"\d{6}\.\.|\.\.-?\d{6}")
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):")
_REFUSED = re.compile(r"::|[\s|{}?#\\@$`<>\"]|[^\x21-\x7e]|/\.\.?(/|$)")
_REFUSED_OF_HUB = re.compile(_REFUSED.pattern.replace("@", ""))  # hf://datasets/owner/name@revision
_PAUSES_S = (0.0, 0.2, 1.0, 3.0)
"""Pause before each attempt to read; the first attempt is immediate."""
_CONNECT_S = 10.0
_SILENCE_S = 30.0
"""Seconds without a byte after which a connection counts as dropped."""
_LISTEN_S = 0.5
"""Longest wait for a result before Python checks for a signal."""
_BUSY = (408, 425, 429)
"""Status codes below 500 that ask the client to retry."""
_NUM_AT_ONCE = 16
_PIECE_BYTES = 2**22
_NUM_PIECES_AHEAD = 4
_IS_HUB = "is_hub"
_PARTIAL = 206
_CONTENT_RANGE = re.compile(r"bytes \d+-\d+/(\d+)")

Result = TypeVar("Result")


class NoSuchFileError(StreamError):
    """A server says that it has no such file."""


class FileFacts(NamedTuple):
    """A server's facts about a file; if one of them changes, the file has changed."""

    size_bytes: int
    """Size of the whole file; -1 if unknown."""
    tag: str
    """The ETag or, without it, the time of the last change; empty if the server gives neither."""


class _Answer(NamedTuple):
    """Bytes of a file, and the server's facts about the whole file."""

    data: bytes
    facts: FileFacts
    num_bytes: int
    """Number of bytes of the answer; *data* is empty if the answer is longer than requested."""
    is_range: bool = True


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
    from braceexpand import braceexpand

    if "://" not in location:
        return (location,)
    try:
        found = () if _HUGE_RANGE.search(location) else tuple(islice(braceexpand(location), _MAX_EXPANDED + 1))
    except ValueError:  # the braces are unbalanced
        raise StreamError("found a URL with unbalanced braces; expected {a,b} or {1..5}: close them") from None
    if not 0 < len(found) <= _MAX_EXPANDED:
        raise StreamError(f"found braces for more than {_MAX_EXPANDED} locations; expected one per cell: correct them")
    return found


def run_and_wait(work: Coroutine[Any, Any, Result]) -> Result:
    """Run *work* on fsspec's thread and return its result; an exception in this thread cancels *work*."""
    future = start_coroutine(work)
    try:
        while not future.done():
            # A signal just before a wait begins does not interrupt it, so an endless wait could miss Ctrl-C.
            wait([future], timeout=_LISTEN_S)
        result: Result = future.result()
        return result
    finally:
        future.cancel()


def start_coroutine(work: Coroutine[Any, Any, Result]) -> Any:
    """Start *work* on fsspec's thread and return its future."""
    from fsspec.asyn import get_loop

    return asyncio.run_coroutine_threadsafe(work, get_loop())


async def gather_bounded(works: list[Coroutine[Any, Any, Result]]) -> list[Result]:
    """Run *works* with at most 16 at once and return their results; the first error cancels the others."""
    places = asyncio.Semaphore(_NUM_AT_ONCE)

    async def placed(work: Coroutine[Any, Any, Result]) -> Result:
        async with places:
            return await work

    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(placed(work)) for work in works]
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None
    return [task.result() for task in tasks]


async def read_range(url: str, start: int = 0, end: int | None = None, *, facts: FileFacts | None = None) -> bytes:
    """Return the bytes of the file at *url* from *start* to *end*; retry a few times after temporary failures.

    Args:
        url: Address of the file.
        start: First byte.
        end: End of the range, exclusive; None: the end of the file.
        facts: Facts that the file must have; None: they are not compared.

    Raises:
        StreamError: the bytes cannot be read, or the file on the server has changed.
    """
    expected = "an object" if end is None else f"{end - start} bytes from byte {start} on"

    def problem(answer: _Answer) -> str:
        is_wrong = answer.num_bytes > MAX_WHOLE_FILE_BYTES if end is None else len(answer.data) != end - start
        return f"{answer.num_bytes} bytes" if is_wrong else ""

    answer = await _request_range(url, start, end, problem=problem, expected=expected)
    if facts is not None:
        require_same_file(url, answer.facts, facts)
    return answer.data


async def copy_file(url: str, facts: FileFacts, target: Path) -> None:
    """Copy the file at *url* to *target* in pieces; several pieces are read at once.

    Raises:
        StreamError: a piece cannot be read, or the file on the server differs from *facts*.
    """
    starts = iter(range(0, facts.size_bytes, _PIECE_BYTES))
    reading: deque[asyncio.Task[bytes]] = deque()

    def read_ahead(num_pieces: int) -> None:
        for start in islice(starts, num_pieces):
            end = min(start + _PIECE_BYTES, facts.size_bytes)
            reading.append(group.create_task(read_range(url, start, end, facts=facts)))

    try:
        async with asyncio.TaskGroup() as group:
            with target.open("wb") as out:
                read_ahead(_NUM_PIECES_AHEAD)
                while reading:
                    await asyncio.to_thread(out.write, await reading.popleft())
                    read_ahead(1)
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None


async def fetch_file_facts(url: str) -> FileFacts:
    """Return the server's facts about the file at *url*; for web URLs, from a request for its first byte.

    Raises:
        StreamError: the file does not exist, or the server does not give its size or serves no ranges.
    """
    if urlsplit(url).scheme in ("s3", "gs"):
        return await _retry(url, lambda: _object_facts(url), problem=lambda _: "", expected="an object")

    def problem(answer: _Answer) -> str:
        if answer.is_range and answer.facts.size_bytes >= 0:
            return ""
        return f"{answer.num_bytes} bytes instead of a range"

    return (await _request_range(url, 0, 1, problem=problem, expected="a range")).facts


async def list_folder(url: str) -> tuple[str, ...]:
    """Return the names of the files in the folder at *url*: of a bucket or the Hub, or the links of a web page.

    Raises:
        StreamError: the folder cannot be listed.
    """

    async def names() -> tuple[str, ...]:
        if urlsplit(url).scheme == "hf":
            answer = await _http_answer(_hub_address(url, listing=True), 0, None, is_hub=True)
            return tuple(entry["path"] for entry in json.loads(answer.data) if entry["type"] == "file")
        file_system = _file_system(urlsplit(url).scheme)
        return tuple(await file_system._ls(f"{url}/", detail=False))  # noqa: SLF001 - so fsspec names coroutines

    found = await _retry(url, names, problem=lambda _: "", expected="a folder that can be listed")
    return tuple(sorted({unquote(name).rstrip("/").rpartition("/")[2] for name in found}))


async def list_recursively(url: str) -> tuple[str, ...]:
    """Return the paths of all objects at any depth in *url*, a folder of a bucket, relative to it.

    Raises:
        StreamError: the bucket does not exist or cannot be listed.
    """
    scheme, _, place = url.partition("://")

    async def paths() -> tuple[str, ...]:
        file_system = _file_system(scheme)
        file_system.invalidate_cache()
        return tuple(await file_system._find(place))  # noqa: SLF001 - so fsspec names coroutines

    found = await _retry(url, paths, problem=lambda _: "", expected="a bucket that can be listed")
    return tuple(sorted(path.removeprefix(f"{place}/") for path in found if path.startswith(f"{place}/")))


async def write_file(url: str, data: bytes) -> None:
    """Write *data* as the bucket's object at *url*; the object appears whole or not at all.

    Raises:
        StreamError: the object cannot be written.
    """

    async def write() -> None:
        await _file_system(urlsplit(url).scheme)._pipe_file(url, data)  # noqa: SLF001 - so fsspec names coroutines

    await _retry(url, write, problem=lambda _: "", expected="a bucket that can be written to")


def require_same_file(url: str, found: FileFacts, expected: FileFacts) -> None:
    """Refuse a file whose facts have changed.

    Raises:
        StreamError: size or tag differ; a tag that is missing on one side is not compared.
    """
    if problem := describe_change(found, expected):
        raise StreamError(f"{url}: {problem}: the file has changed on the server: materialize tar_shards again")


def describe_change(found: FileFacts, expected: FileFacts) -> str:
    """Return how *found* differs from *expected* in words; empty if they agree."""
    if found.size_bytes >= 0 and found.size_bytes != expected.size_bytes:
        return f"found {found.size_bytes} bytes; expected {expected.size_bytes}"
    if found.tag and expected.tag and found.tag != expected.tag:
        return f"found the tag {found.tag}; expected {expected.tag}"
    return ""


async def _request_range(
    url: str, start: int, end: int | None, *, problem: Callable[[_Answer], str], expected: str
) -> _Answer:
    scheme = urlsplit(url).scheme
    address = _hub_address(url) if scheme == "hf" else _quote_path(url) if scheme.startswith("http") else url

    async def ask() -> _Answer:
        if scheme in ("s3", "gs"):
            return await _object_answer(address, start, end)
        return await _http_answer(address, start, end, is_hub=scheme == "hf")

    return await _retry(url, ask, problem=problem, expected=expected)


async def _retry(
    url: str, ask: Callable[[], Awaitable[Result]], *, problem: Callable[[Result], str], expected: str
) -> Result:
    found = ""
    for pause_s in _PAUSES_S:
        await asyncio.sleep(pause_s)
        try:
            answer = await ask()
        except StreamError:
            raise
        except FileNotFoundError:
            raise NoSuchFileError(
                f"{url}: found FileNotFoundError; expected {expected}: check the address, and the rights to read it"
            ) from None
        except Exception as error:  # noqa: BLE001 - each library has its own errors
            # Report only the type of the error: its text may contain headers and signed URLs.
            found = _kind(error)
            if _is_final(error):
                break
        else:
            found = problem(answer)
            if not found:
                return answer
    raise StreamError(
        f"{url}: found {found}; expected {expected}: check the address, the rights to read it, and whether the server "
        "serves ranges"
    )


async def _http_answer(address: str, start: int, end: int | None, *, is_hub: bool) -> _Answer:
    asked = {**(_hub_headers() if is_hub else {}), "Accept-Encoding": "identity"}
    if end is not None:
        asked["Range"] = f"bytes={start}-{end - 1}"
    session = await _file_system("https").set_session()
    async with session.get(address, headers=asked, trace_request_ctx={_IS_HUB: is_hub}) as response:
        if response.status == 404:
            raise FileNotFoundError(address)
        response.raise_for_status()
        is_range = response.status == _PARTIAL
        length = response.content_length
        whole = _CONTENT_RANGE.match(response.headers.get("Content-Range", ""))
        size_bytes = int(whole[1]) if whole else length if length is not None and not is_range else -1
        tag = response.headers.get("ETag") or response.headers.get("Last-Modified") or ""
        facts = FileFacts(size_bytes, tag)
        most = MAX_WHOLE_FILE_BYTES if end is None else end - start
        if length is not None and length > most:
            # A server that ignores ranges would send the whole file for each of its parts.
            response.close()
            return _Answer(b"", facts, length, is_range)
        data = bytearray()
        async for chunk in response.content.iter_any():
            data += chunk
            if len(data) > most:
                response.close()
                return _Answer(b"", facts, len(data), is_range)
        return _Answer(bytes(data), facts, len(data), is_range)


async def _object_answer(address: str, start: int, end: int | None) -> _Answer:
    span = {} if end is None else {"start": start, "end": end}
    file_system = _file_system(urlsplit(address).scheme)
    data: bytes = await file_system._cat_file(address, **span)  # noqa: SLF001 - so fsspec names coroutines
    return _Answer(data, FileFacts(-1, ""), len(data))


async def _object_facts(address: str) -> FileFacts:
    file_system = _file_system(urlsplit(address).scheme)
    file_system.invalidate_cache()
    info = await file_system._info(address)  # noqa: SLF001 - so fsspec names coroutines
    tag = next((str(info[name]) for name in ("ETag", "etag", "md5Hash", "LastModified") if info.get(name)), "")
    return FileFacts(int(info["size"]), tag)


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


def _file_system(scheme: str) -> Any:
    try:
        import fsspec

        if scheme not in ("http", "https"):
            return fsspec.filesystem(scheme)
        from aiohttp import ClientTimeout

        timeout = ClientTimeout(sock_connect=_CONNECT_S, sock_read=_SILENCE_S)
        settings = {"timeout": timeout, "trust_env": True, "trace_configs": _redirect_hooks()}
        return fsspec.filesystem(scheme, client_kwargs=settings)
    except ImportError as error:
        raise StreamError(
            f"found no library for {scheme}:// ({error.name or error}); expected aiohttp for http, s3fs for s3, gcsfs "
            "for gs: pip install 'tta_pipeline[remote]'"
        ) from None


@cache
def _redirect_hooks() -> list[Any]:
    """Return the aiohttp hook that checks redirects; always the same list, since fsspec caches clients by it."""
    from aiohttp import TraceConfig

    watched = TraceConfig()
    watched.on_request_redirect.append(_refuse_foreign_redirect)
    return [watched]


async def _refuse_foreign_redirect(session: Any, context: Any, redirect: Any) -> None:
    """Refuse a redirect to another host before anything is sent there."""
    del session
    here, headers = str(redirect.url), redirect.response.headers
    there = urljoin(here, headers.get("Location") or headers.get("URI") or "")
    asked = context.trace_request_ctx or {}
    if problem := redirect_problem(here, there, is_hub=asked.get(_IS_HUB, False)):
        redirect.response.close()
        raise StreamError(f"{here.partition('?')[0]}: found {problem}")


def _kind(error: Exception) -> str:
    status = getattr(error, "status", None)
    return " ".join([type(error).__name__, *([str(status)] if isinstance(status, int) else [])])


def _is_final(error: Exception) -> bool:
    status = getattr(error, "status", None)
    refused = isinstance(status, int) and 400 <= status < 500 and status not in _BUSY
    return refused or isinstance(error, PermissionError)
