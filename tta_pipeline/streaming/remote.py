"""Shard sets at http, https, s3, gs or file URLs.

A URL is opened only by the library of its scheme, without chain, pipe or shell, and contains no secret. Keys, profiles
and endpoints come from where these libraries look: AWS_* and GOOGLE_* variables, ~/.netrc, fsspec's settings.
"""

import asyncio
import re
from collections.abc import Coroutine
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar
from urllib.parse import quote, unquote, urlsplit

from tta_pipeline.errors import ManifestError, StreamError
from tta_pipeline.shards.manifest import MANIFEST_FILE, Manifest, read_record

SCHEMES = ("http", "https", "s3", "gs", "file")
_MAX_EXPANDED = 10_000
_HUGE_RANGE = re.compile(r"\d{6}\.\.|\.\.-?\d{6}")
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):")
_REFUSED = re.compile(r"::|[\s|{}?#\\@$`<>\"]|[^\x21-\x7e]|/\.\.?(/|$)")
_PAUSES_S = (0.0, 0.2, 1.0, 3.0)
"""Pause before each attempt to read; only the first attempt has none."""
_CONNECT_S = 10.0
_SILENCE_S = 30.0
"""Seconds without a byte after which a connection counts as dropped."""
_BUSY = (408, 425, 429)
"""Status codes below 500 that ask the client to retry."""

Result = TypeVar("Result")


@dataclass(frozen=True, kw_only=True)
class LocalFolder:
    """A shard set on a file system."""

    path: Path

    def __str__(self) -> str:
        return str(self.path)

    def manifest(self) -> Manifest:
        """Return the manifest.

        Raises:
            ManifestError: see `read_record`.
        """
        return read_record(self.path / MANIFEST_FILE, Manifest)

    async def read(self, name: str, start: int = 0, end: int | None = None) -> bytes:
        """Return the bytes of a file from *start* to *end*.

        Raises:
            StreamError: some of the bytes are missing.
        """
        return await asyncio.to_thread(self._read, name, start, end)

    def _read(self, name: str, start: int, end: int | None) -> bytes:
        try:
            with (self.path / name).open("rb", buffering=0) as file:
                file.seek(start)
                data = file.read() if end is None else file.read(end - start)
        except OSError as error:
            raise StreamError(
                f"{self.path / name} cannot be read ({error.strerror}); expected a file of the shard set: verify it"
            ) from error
        if end is not None and len(data) != end - start:
            raise StreamError(
                f"{self.path / name}: found the end of the file at byte {start + len(data)}; expected more, as in the "
                "manifest: verify the shard set"
            )
        return data


@dataclass(frozen=True, kw_only=True)
class RemoteFolder:
    """A shard set at a URL, which contains no secret and may appear in messages."""

    url: str

    def __str__(self) -> str:
        return self.url

    def manifest(self) -> Manifest:
        """Fetch the manifest.

        Raises:
            StreamError: the manifest cannot be fetched, or is damaged.
        """
        data = waited_for(self.read(MANIFEST_FILE))
        with TemporaryDirectory(prefix="tta_pipeline-manifest-") as folder:
            path = Path(folder) / MANIFEST_FILE
            path.write_bytes(data)
            try:
                return read_record(path, Manifest)
            except ManifestError as error:
                raise StreamError(str(error).replace(str(path), f"{self}/{MANIFEST_FILE}")) from None

    async def read(self, name: str, start: int = 0, end: int | None = None) -> bytes:
        """Return the bytes of an object from *start* to *end*; after a temporary failure, retry a few times.

        Raises:
            StreamError: the bytes cannot be read.
        """
        scheme = urlsplit(self.url).scheme
        file_system = _file_system(scheme)
        address = f"{self.url}/{quote(name) if scheme.startswith('http') else name}"
        span = {} if end is None else {"start": start, "end": end}
        found = ""
        for pause_s in _PAUSES_S:
            await asyncio.sleep(pause_s)
            try:
                data: bytes = await file_system._cat_file(address, **span)  # noqa: SLF001 - so fsspec names coroutines
            except Exception as error:  # noqa: BLE001 - each library has its own errors
                # Only the kind of the error is reported: its text may contain headers and signed URLs.
                found = _kind(error)
                if _is_final(error):
                    break
            else:
                if end is None or len(data) == end - start:
                    return data
                found = f"{len(data)} bytes"
        expected = "an object" if end is None else f"{end - start} bytes from byte {start} on"
        raise StreamError(
            f"{self.url}/{name}: found {found}; expected {expected}: check the address, the rights to read it, and "
            "whether the server serves ranges"
        )


Folder = LocalFolder | RemoteFolder


def folder_at(location: str) -> Folder:
    """Return the folder that *location*, a path or a URL, names.

    Raises:
        StreamError: the scheme of the URL is not supported, or the URL contains something that does not belong there.
    """
    match = _SCHEME.match(location)
    if match is None:
        return LocalFolder(path=Path(location))
    scheme = match[1].lower()
    if scheme not in SCHEMES or not location[match.end() :].startswith("//"):
        raise StreamError(
            f"found a location that begins with {match[0]!r}; expected a folder, or a URL of {', '.join(SCHEMES)}: "
            "write ./ before the name of a folder with a colon"
        )
    rest = location[match.end() + 2 :].rstrip("/")
    if refused := _REFUSED.search(rest):
        raise StreamError(
            f"found {refused[0]!r} in a {scheme} URL; expected only host or bucket and path, without key, query, "
            "chain or pattern: give keys in the environment or ~/.netrc"
        )
    if scheme == "file":
        if not rest.startswith("/"):
            raise StreamError(f"found {location}; expected file:/// and an absolute path")
        return LocalFolder(path=Path(unquote(rest)))
    if not rest or rest.startswith("/"):
        raise StreamError(f"found {location}; expected a host or bucket after {scheme}://")
    return RemoteFolder(url=f"{scheme}://{rest}")


def expanded(location: str) -> tuple[str, ...]:
    """Return the locations that the braces of a URL stand for, in order: `s3://b/{fog,snow}/{1..5}` has ten.

    A path on disk is one location: its braces are plain characters, and shells expand their own.

    Raises:
        StreamError: the braces are not closed, or stand for more than 10,000 locations.
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


def waited_for(work: Coroutine[Any, Any, Result]) -> Result:
    """Run *work* on fsspec's thread and return its result; an exception here, such as a cancellation, ends it."""
    from fsspec.asyn import get_loop

    future = asyncio.run_coroutine_threadsafe(work, get_loop())
    try:
        return future.result()
    finally:
        future.cancel()


def _file_system(scheme: str) -> Any:
    try:
        import fsspec

        if scheme not in ("http", "https"):
            return fsspec.filesystem(scheme)
        from aiohttp import ClientTimeout

        timeout = ClientTimeout(sock_connect=_CONNECT_S, sock_read=_SILENCE_S)
        return fsspec.filesystem(scheme, client_kwargs={"timeout": timeout, "trust_env": True})
    except ImportError as error:
        raise StreamError(
            f"found no library for {scheme}:// ({error.name or error}); expected aiohttp for http, s3fs for s3, gcsfs "
            "for gs: pip install 'tta_pipeline[remote]'"
        ) from None


def _kind(error: Exception) -> str:
    status = getattr(error, "status", None)
    return " ".join([type(error).__name__, *([str(status)] if isinstance(status, int) else [])])


def _is_final(error: Exception) -> bool:
    status = getattr(error, "status", None)
    refused = isinstance(status, int) and 400 <= status < 500 and status not in _BUSY
    return refused or isinstance(error, FileNotFoundError | PermissionError)
