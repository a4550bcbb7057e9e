"""Folders, and http, https, s3, gs, hf or file URLs, from which shard sets are copied."""

import asyncio
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

from tta_pipeline.data.remote_files import (
    REMOTE_SCHEMES,
    read_range,
    read_whole,
    scheme_of,
    validate_url,
)
from tta_pipeline.data.server_requests import run_and_wait
from tta_pipeline.errors import ManifestError, StreamError
from tta_pipeline.shards.manifest import MANIFEST_FILE, parse_record, read_record
from tta_pipeline.shards.set_facts import Manifest

SCHEMES = (*REMOTE_SCHEMES, "file")


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

    async def read(self, name: str, start: int, end: int) -> bytes:
        """Return the bytes of a file from *start* to *end*.

        Raises:
            StreamError: some of the bytes are missing.
        """
        return await asyncio.to_thread(self._read, name, start, end)

    async def read_whole(self, name: str) -> bytes:
        """Return the content of a file."""
        return await asyncio.to_thread(self._read, name, 0, None)

    def _read(self, name: str, start: int, end: int | None) -> bytes:
        try:
            if end is None:
                return (self.path / name).read_bytes()
            with (self.path / name).open("rb") as file:
                file.seek(start)
                data = file.read(end - start)
        except OSError as error:
            raise StreamError(
                f"{self.path / name} cannot be read ({error.strerror}); expected a file of the shard set: verify it"
            ) from error
        if len(data) != end - start:
            raise StreamError(
                f"{self.path / name}: found the end of the file at byte {start + len(data)}; expected more, as in the "
                "manifest: verify the shard set"
            )
        return data


@dataclass(frozen=True, kw_only=True)
class RemoteFolder:
    """A shard set at a URL; the URL contains no secret and may appear in messages."""

    url: str

    def __str__(self) -> str:
        return self.url

    def manifest(self) -> Manifest:
        """Fetch the manifest.

        Raises:
            StreamError: the manifest cannot be fetched, or is damaged.
        """
        url = f"{self.url}/{MANIFEST_FILE}"
        data = run_and_wait(read_whole(url))
        try:
            return parse_record(data, url, Manifest)
        except ManifestError as error:
            raise StreamError(str(error)) from None

    async def read(self, name: str, start: int, end: int) -> bytes:
        """Return the bytes of an object from *start* to *end*.

        Raises:
            StreamError: the bytes cannot be read.
        """
        return await read_range(f"{self.url}/{name}", start, end)

    async def read_whole(self, name: str) -> bytes:
        """Return the content of an object."""
        return await read_whole(f"{self.url}/{name}")


Folder = LocalFolder | RemoteFolder


def folder_at(location: str) -> Folder:
    """Return the folder at *location*, a path or a URL."""
    scheme = scheme_of(location)
    if not scheme:
        return LocalFolder(path=Path(location))
    url = validate_url(location, expected=SCHEMES)
    if scheme != "file":
        return RemoteFolder(url=url)
    path = url.removeprefix("file://")
    if not path.startswith("/"):
        raise StreamError(f"found {location}; expected file:/// and an absolute path")
    return LocalFolder(path=Path(unquote(path)))
