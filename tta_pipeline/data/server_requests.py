"""Requests to servers: patient and bounded.

Every byte that arrives from a server comes through here: ranges of shards, records in a bucket, published archives. A
URL is opened only by the library of its scheme. Keys, profiles and endpoints come from the usual places of these
libraries: AWS_* and GOOGLE_* variables, ~/.netrc, fsspec's settings. Redirects are followed; aiohttp sends no
credentials to another host.
"""

import asyncio
import os
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from concurrent.futures import wait
from contextlib import asynccontextmanager
from typing import Any, NamedTuple, TypeVar

from tta_pipeline.errors import PipelineError, StreamError

_PAUSES_S = (0.0, 0.2, 1.0, 3.0)
"""Pause before each attempt to read; the first attempt is immediate."""
_CONNECT_S = 10.0
_SILENCE_S = 30.0
"""Seconds without a byte after which a connection counts as dropped."""
_LISTEN_S = 0.5
"""Longest wait for a result before Python checks for a signal."""
_BUSY = (408, 425, 429)
"""Status codes below 500 that ask the client to retry."""
_PARTIAL, _MISSING, _NO_SUCH_RANGE = 206, 404, 416
_NUM_AT_ONCE = 16
_CONTENT_RANGE = re.compile(r"bytes (\d+)-\d+/(?:(\d+)|\*)")
_file_systems: set[tuple[int, Any]] = set()
"""Every file system that was opened, with the number of its process."""

Result = TypeVar("Result")


class FileFacts(NamedTuple):
    """A server's facts about a file; if one of them changes, the file has changed."""

    size_bytes: int
    """Size of the whole file; -1 if unknown."""
    tag: str
    """The ETag or, without it, the time of the last change; empty if the server gives neither."""


class NoAnswerError(Exception):
    """A server does not give the expected answer; the text says what was found, for the caller's own message."""

    def __init__(self, found: str, *, is_final: bool = False, is_missing: bool = False) -> None:
        super().__init__(found)
        self.is_final = is_final
        """Whether asking again is useless."""
        self.is_missing = is_missing
        """Whether the server says that it has no such file."""


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


async def gather_bounded(works: Sequence[Coroutine[Any, Any, Result]]) -> list[Result]:
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


async def ask_patiently(
    ask: Callable[[], Awaitable[Result]],
    *,
    pauses_s: Sequence[float] | None = None,
    count_received: Callable[[], int] = lambda: 0,
) -> Result:
    """Return the result of *ask*; ask again after temporary failures.

    Args:
        ask: Makes a request.
        pauses_s: Pause before each attempt, in seconds; None: a few seconds in all.
        count_received: Returns the number of bytes received so far; as long as it grows, the attempts count anew.

    Raises:
        NoAnswerError: the last attempt failed too, or the failure is final.
        PipelineError: *ask* raised it, so the fault is not the server's.
    """
    pauses_s = _PAUSES_S if pauses_s is None else pauses_s
    attempt, most_bytes = 0, count_received()
    while True:
        await asyncio.sleep(pauses_s[attempt])
        try:
            return await ask()
        except PipelineError:
            raise
        except Exception as error:  # noqa: BLE001 - each library has its own errors
            failure = _describe(error)
        attempt = 0 if count_received() > most_bytes else attempt + 1
        most_bytes = max(most_bytes, count_received())
        if failure.is_final or attempt == len(pauses_s):
            raise failure


class WebAnswer:
    """The answer of a web server, whose bytes are still to come."""

    def __init__(self, response: Any) -> None:
        self._response = response
        self.length: int | None = response.content_length
        """Number of bytes of the answer; None if unknown."""
        span = _CONTENT_RANGE.match(response.headers.get("Content-Range", ""))
        self.is_range: bool = response.status == _PARTIAL
        self.start = int(span[1]) if span and self.is_range else None if self.is_range else 0
        """First byte of the file that the answer has; None if the server does not say it."""
        whole_bytes = int(span[2]) if span and span[2] else None if self.is_range else self.length
        tag = response.headers.get("ETag") or response.headers.get("Last-Modified") or ""
        self.facts = FileFacts(-1 if whole_bytes is None else whole_bytes, tag)
        following = response.links.get("next", {}).get("url")
        self.next_page = str(following) if following else ""
        """Address of the rest of a listing in pages; empty on the last page."""

    def pieces(self) -> AsyncIterator[bytes]:
        """Return the bytes as they arrive."""
        pieces: AsyncIterator[bytes] = self._response.content.iter_any()
        return pieces

    async def read(self, most_bytes: int) -> bytes:
        """Return all bytes.

        Raises:
            NoAnswerError: there are more than *most_bytes*; the rest is not read.
        """
        if (self.length or 0) > most_bytes:  # a server that ignores ranges would send the file for each of its parts
            raise NoAnswerError(f"{self.length} bytes")
        num_bytes, found = 0, list[bytes]()
        async for piece in self.pieces():
            num_bytes += len(piece)
            if num_bytes > most_bytes:
                raise NoAnswerError(f"{num_bytes} bytes")
            found.append(piece)
        return b"".join(found)


@asynccontextmanager
async def open_web_answer(address: str, headers: Mapping[str, str]) -> AsyncIterator[WebAnswer]:
    """Ask the web server for *address* and yield its answer.

    Args:
        address: An http or https URL, quoted.
        headers: Headers of the request, such as the range.

    Raises:
        aiohttp.ClientError, TimeoutError: the server refuses or does not answer.
    """
    asked = {"Accept-Encoding": "identity", "User-Agent": "tta-pipeline", **headers}
    session = await open_file_system("https").set_session()
    async with session.get(address, headers=asked) as response:
        response.raise_for_status()
        yield WebAnswer(response)


def size_without_range(error: Exception) -> int | None:
    """Return the size of the file if *error* says that the requested range lies behind its end, -1 if it is unknown.

    None for any other error.
    """
    if getattr(error, "status", None) != _NO_SUCH_RANGE:
        return None
    stated = (getattr(error, "headers", None) or {}).get("Content-Range", "").removeprefix("bytes */")
    return int(stated) if stated.isdecimal() else -1


def open_file_system(scheme: str) -> Any:
    """Return fsspec's file system for *scheme*, one of this process."""
    try:
        import fsspec

        opened = fsspec.filesystem(scheme, **(_web_settings() if scheme in ("http", "https") else {}))
    except ImportError as error:
        raise StreamError(
            f"found no library for {scheme}:// ({error.name or error}); expected s3fs for s3, gcsfs for gs: "
            "pip install 'tta_pipeline[remote]'"
        ) from None
    # A forked process must not free what it inherits: its parent would hear nothing more on open connections.
    _file_systems.add((os.getpid(), opened))
    return opened


def _web_settings() -> dict[str, Any]:
    """Return fsspec's settings for web servers."""
    from aiohttp import ClientTimeout

    timeout = ClientTimeout(sock_connect=_CONNECT_S, sock_read=_SILENCE_S)
    # A file is compared and written as it is, even if a server states that its content is compressed.
    return {"client_kwargs": {"timeout": timeout, "trust_env": True, "auto_decompress": False}}


def _describe(error: Exception) -> NoAnswerError:
    """Say what *error* means, but not its text: a library's may contain headers and signed URLs."""
    if isinstance(error, NoAnswerError):
        return error
    status, kind = getattr(error, "status", None), type(error).__name__
    if isinstance(status, int) and status:
        is_final = 400 <= status < 500 and status not in _BUSY
        return NoAnswerError(f"status {status}", is_final=is_final, is_missing=status == _MISSING)
    if isinstance(error, FileNotFoundError):
        return NoAnswerError(kind, is_final=True, is_missing=True)
    if kind == "ClientPayloadError":
        return NoAnswerError("an answer that breaks off")
    if isinstance(error, TimeoutError):
        is_connecting = kind.startswith("Connection")
        return NoAnswerError(f"no connection in {_CONNECT_S:g} s" if is_connecting else f"no byte for {_SILENCE_S:g} s")
    reason = getattr(getattr(error, "os_error", None), "strerror", None)  # no connection: the system says why
    return NoAnswerError(f"{kind} ({reason})" if reason else kind, is_final=isinstance(error, PermissionError))
