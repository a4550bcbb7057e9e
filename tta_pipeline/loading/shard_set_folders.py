"""Folders, and http, https, s3, gs, az, hf or file URLs, from which shard sets are copied."""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from urllib.parse import unquote

from tta_pipeline.data.copied_file import copy_file
from tta_pipeline.data.remote_files import REMOTE_SCHEMES, FileFacts, read_whole, scheme_of, validate_url
from tta_pipeline.errors import ManifestError, StreamError
from tta_pipeline.shards.manifest import MANIFEST_FILE, parse_record, read_record
from tta_pipeline.shards.set_facts import Manifest, ShardFacts

SCHEMES = (*REMOTE_SCHEMES, "file")
_PIECE_BYTES = 2**22


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

    def read_whole(self, name: str) -> bytes:
        """Return the content of a file.

        Raises:
            StreamError: it cannot be read.
        """
        with self._naming(name):
            return (self.path / name).read_bytes()

    def copy(self, shard: ShardFacts, out: FileIO) -> str:
        """Copy a shard to the empty file *out*, and return its sha256.

        Raises:
            StreamError: it cannot be read, or has another size.
        """
        digest = hashlib.sha256()
        with self._naming(shard.name), (self.path / shard.name).open("rb", buffering=0) as file:
            while data := file.read(_PIECE_BYTES):
                digest.update(data)
                out.write(data)
        if out.tell() != shard.shard_bytes:
            raise StreamError(
                f"{self.path / shard.name}: found {out.tell()} bytes; expected {shard.shard_bytes}, as in the "
                "manifest: verify the shard set"
            )
        return digest.hexdigest()

    @contextmanager
    def _naming(self, name: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if error.filename is None:  # the copy cannot be written
                raise
            raise StreamError(
                f"{self.path / name} cannot be read ({error.strerror}); expected a file of the shard set: verify it"
            ) from error


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
        data = read_whole(url)
        try:
            return parse_record(data, url, Manifest)
        except ManifestError as error:
            raise StreamError(str(error)) from None

    def read_whole(self, name: str) -> bytes:
        """Return the content of an object.

        Raises:
            StreamError: it cannot be read.
        """
        return read_whole(f"{self.url}/{name}")

    def copy(self, shard: ShardFacts, out: FileIO) -> str:
        """Copy a shard to the empty file *out*, and return its sha256.

        Raises:
            StreamError: it cannot be read, or has another size.
        """
        return copy_file(f"{self.url}/{shard.name}", out, FileFacts(shard.shard_bytes, ""), algorithm="sha256")


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
