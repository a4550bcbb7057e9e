"""Cache of decoded cells: for the next experiment on a cell, reading its pixels costs one copy.

The files are on node-local disk, or in memory under /dev/shm, in our own folder below the given folder. A file is named
`<64 hex digits>-<size>.pixels`, where the digits are the hash of everything that determines its pixels. It contains:

    uint8 (N, H, W, 3)   the pixels, in stored order
    N x 8 bytes          the xxh3 of each sample's pixels, compared at every read
    32 bytes             the hex digits of the name as bytes
    32 bytes             the sha256 of the 8 N + 32 bytes before

The folder also has the features of frozen models (`evaluation.feature_cache`). Before a new file would exceed the
limit, the least recently used files are removed. A damaged file is removed too, and the shards are read instead.
"""

import fcntl
import hashlib
import json
import os
import re
import stat
import uuid
from collections.abc import Collection, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from threading import Lock
from typing import BinaryIO, NamedTuple, Self

import numpy as np
import numpy.typing as npt
from xxhash import xxh3_64_digest

from tta_pipeline.errors import StreamError
from tta_pipeline.loading.remote_blocks import DEFAULT_CACHE, BlockCache
from tta_pipeline.loading.stored_pixels import Pixels, StoredPixels
from tta_pipeline.shards.checksums import CHECKSUM_BYTES, Digests
from tta_pipeline.shards.ordering import Indices
from tta_pipeline.shards.shard_set import ShardSet
from tta_pipeline.util.files import fsync_path, make_cache_folder, open_file

OWN_FOLDER = "tta_pipeline-decoded"
_NAME = re.compile(r"[0-9a-f]{64}-[0-9]+\.pixels")
_FEATURES = re.compile(r"[0-9a-f]{64}-([0-9a-f]{64})\.features")
_UNFINISHED_NAME = re.compile(r"\.[0-9a-f]{32}-[0-9a-f]{64}-[0-9]+\.pixels")
_HASH_BYTES = 32
_FORMAT = 2
_DECODERS = ("simplejpeg", "pillow")


@dataclass(frozen=True, kw_only=True)
class DecodedCache:
    """Cache of decoded cells below a folder."""

    folder: Path
    limit_bytes: int
    cache: BlockCache = DEFAULT_CACHE
    """Cache of the blocks of shards at URLs, used while the shards are decoded."""

    @property
    def own_folder(self) -> Path:
        """The folder below the given folder that contains only these files."""
        return self.folder / OWN_FOLDER

    def open_pixels(self, shard_set: ShardSet, image_size: int) -> Pixels:
        """Return the pixels of *shard_set*: from the cache, or from the shards while they are added to the cache.

        Raises:
            StreamError: the folder cannot be written to.
        """
        kind = _CacheEntry.of(shard_set, image_size)
        path = self.own_folder / _file_name(kind.identity, image_size)
        stored = StoredPixels(shard_set, image_size, cache=self.cache)
        if (checksums := kind.read_checksums(path)) is not None:
            return CachedPixels(path, stored, image_size, checksums)
        if kind.file_bytes > self.limit_bytes:
            return stored
        try:
            make_cache_folder(self.own_folder)
            path.unlink(missing_ok=True)
            self.make_room(kind.file_bytes)
        except OSError as error:
            raise StreamError(
                f"{self.own_folder}: found {error.strerror}; expected a folder where decoded cells can be kept: give "
                "another folder, or none"
            ) from error
        return _CachingPixels(stored, path, kind)

    def find_unreferenced(self, manifests: Collection[str]) -> Iterator[Path]:
        """Yield the files that belong to none of *manifests*, given by sha256, or were made by another decoder.

        Files that a killed process left behind are yielded too.
        """
        if not self.own_folder.is_dir():
            return
        for path in sorted(self.own_folder.iterdir()):
            features = _FEATURES.fullmatch(path.name)
            if features and features[1] not in manifests:
                yield path
            if _UNFINISHED_NAME.fullmatch(path.name) and _is_abandoned(path):
                yield path
            if _NAME.fullmatch(path.name):
                image_size = int(path.stem.rpartition("-")[2])
                known = (_file_name(_identity(sha256, image_size), image_size) for sha256 in manifests)
                if path.name not in known:
                    yield path

    def make_room(self, size_bytes: int) -> None:
        """Remove the least recently used files until *size_bytes* fit.

        A process that reads a removed file has it open and can read on.
        """
        kept = sorted(self._files(), key=lambda each: each[1].st_atime_ns)
        total_bytes = sum(facts.st_size for _, facts in kept) + size_bytes
        for path, facts in kept:
            if total_bytes <= self.limit_bytes:
                return
            if _UNFINISHED_NAME.fullmatch(path.name) and not _is_abandoned(path):
                continue
            total_bytes -= facts.st_size
            path.unlink(missing_ok=True)

    def _files(self) -> Iterator[tuple[Path, os.stat_result]]:
        """Yield all files, including unfinished ones; another process may remove a file at any moment."""
        for path in self.own_folder.iterdir():
            if any(name.fullmatch(path.name) for name in (_NAME, _FEATURES, _UNFINISHED_NAME)):
                with suppress(FileNotFoundError):
                    facts = path.lstat()
                    if stat.S_ISREG(facts.st_mode):
                        yield path, facts


def _is_abandoned(path: Path) -> bool:
    """Return whether no process writes the file *path* any more; a writing process holds its lock."""
    try:
        with open_file(path) as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _file_name(identity: str, image_size: int) -> str:
    return f"{identity}-{image_size}.pixels"


def _identity(manifest_sha256: str, image_size: int) -> str:
    decisive = [_FORMAT, manifest_sha256, image_size, _decoder_versions()]
    return hashlib.sha256(json.dumps(decisive).encode()).hexdigest()


class _CacheEntry(NamedTuple):
    """Identity and sizes of a file of decoded pixels."""

    identity: str
    """Hash of everything that determines the pixels: shard set, image size and decoders."""
    num_samples: int
    image_bytes: int

    @classmethod
    def of(cls, shard_set: ShardSet, image_size: int) -> Self:
        identity = _identity(shard_set.manifest.sha256, image_size)
        return cls(identity, shard_set.manifest.num_samples, image_size**2 * 3)

    @property
    def pixel_bytes(self) -> int:
        return self.num_samples * self.image_bytes

    @property
    def file_bytes(self) -> int:
        return self.pixel_bytes + self.num_samples * CHECKSUM_BYTES + 2 * _HASH_BYTES

    def trailer(self, checksums: Digests) -> bytes:
        """Return the bytes after the pixels."""
        body = checksums.tobytes() + bytes.fromhex(self.identity)
        return body + hashlib.sha256(body).digest()

    def read_checksums(self, path: Path) -> Digests | None:
        """Return the checksums of the samples in the file *path*, or None if it is not a whole file of this kind."""
        try:
            with open_file(path) as file:
                if os.fstat(file.fileno()).st_size != self.file_bytes:
                    return None
                file.seek(self.pixel_bytes)
                trailer = file.read(self.file_bytes - self.pixel_bytes)
        except OSError:
            return None
        body, digest = trailer[:-_HASH_BYTES], trailer[-_HASH_BYTES:]
        is_ours = body.endswith(bytes.fromhex(self.identity)) and hashlib.sha256(body).digest() == digest
        return np.frombuffer(body[:-_HASH_BYTES], f"V{CHECKSUM_BYTES}") if is_ours else None


class CachedPixels:
    """Reads a file of decoded pixels and compares each sample's checksum; reads the shards if a sample is damaged."""

    def __init__(self, path: Path, stored: StoredPixels, image_size: int, checksums: Digests) -> None:
        self._path = path
        self._image_bytes = image_size**2 * 3
        self._checksums = checksums
        self._stored = stored
        self._is_damaged = False
        self._lock = Lock()
        self._later = ExitStack()

    def open(self, stack: ExitStack) -> None:
        """Open the file until *stack* closes, and with it the shards, should they be read."""
        # A thread may open the shards at any moment; their stack comes first, to close after the threads have ended.
        stack.enter_context(self._later)
        try:
            self._file: BinaryIO = stack.enter_context(self._path.open("rb", buffering=0))
            os.utime(self._path)  # marks the file as just used, since some file systems do not
        except OSError:  # another process has just removed the file
            self._switch_to_shards()

    def expect(self, indices: Indices) -> None:
        """Do nothing: the pixels are on local disk."""

    def fill(self, indices: Indices, out: npt.NDArray[np.uint8]) -> None:
        """Copy the samples at *indices* into *out*, adjacent samples at once.

        Raises:
            StreamError: the file is damaged, and a shard cannot be read or differs from the manifest.
        """
        if self._is_damaged or not self._copy_intact(indices, out):
            self._switch_to_shards()
            self._stored.fill(indices, out)

    def require_unchanged(self) -> None:
        """Make sure that the shards are unchanged, if they were read."""
        if self._is_damaged:
            self._stored.require_unchanged()

    def _copy_intact(self, indices: Indices, out: npt.NDArray[np.uint8]) -> bool:
        """Copy the samples at *indices* into *out*, and return whether all their pixels are undamaged."""
        edges = [0, *(np.flatnonzero(np.diff(indices) != 1) + 1).tolist(), len(indices)]
        try:
            for first, last in pairwise(edges):
                start = int(indices[first]) * self._image_bytes
                os.preadv(self._file.fileno(), [out[first:last].data], start)
        except OSError:
            return False
        known: list[bytes] = self._checksums[indices].tolist()
        return all(xxh3_64_digest(image.data) == expected for image, expected in zip(out, known, strict=True))

    def _switch_to_shards(self) -> None:
        """Open the shards and remove the damaged file, once."""
        with self._lock:
            if not self._is_damaged:
                self._stored.open(self._later)
                with suppress(OSError):
                    self._path.unlink(missing_ok=True)
                self._is_damaged = True


class _CachingPixels:
    """Reads the shards, and writes every sample's pixels to a file; if writing fails, reading continues."""

    def __init__(self, stored: StoredPixels, path: Path, kind: _CacheEntry) -> None:
        self._stored = stored
        self._kind = kind
        self._is_missing = np.ones(kind.num_samples, np.bool_)
        self._checksums = np.zeros(kind.num_samples, f"V{CHECKSUM_BYTES}")
        self._path = path
        self._beside = path.with_name(f".{uuid.uuid4().hex}-{path.name}")
        self._keeps = True

    def open(self, stack: ExitStack) -> None:
        """Open the shards and the file until *stack* closes; a file without its name is then removed."""
        self._stored.open(stack)
        self._file = stack.enter_context(self._beside.open("xb", buffering=0))
        stack.callback(self._beside.unlink, missing_ok=True)
        with suppress(OSError):  # some network file systems have no locks
            fcntl.flock(self._file, fcntl.LOCK_SH)  # tells other processes that the file is being written

    def expect(self, indices: Indices) -> None:
        """Read ahead in shards at URLs, in the order of *indices*."""
        self._stored.expect(indices)

    def fill(self, indices: Indices, out: npt.NDArray[np.uint8]) -> None:
        """Read and decode the samples at *indices* into *out*, and write their pixels to the file."""
        self._stored.fill(indices, out)
        for index, image in zip(indices.tolist(), out, strict=True):
            self._checksums[index] = np.void(xxh3_64_digest(image.data))
            self._write(image, index * self._kind.image_bytes)
        self._is_missing[indices] = False

    def require_unchanged(self) -> None:
        """Make sure that the shards are unchanged; then, if every sample was read, give the file its name."""
        self._stored.require_unchanged()
        if not self._is_missing.any():
            trailer = np.frombuffer(self._kind.trailer(self._checksums), np.uint8)
            self._write(trailer, self._kind.pixel_bytes)
            if self._keeps:
                with suppress(FileNotFoundError):  # another process has made room
                    fsync_path(self._beside)
                    self._beside.replace(self._path)

    def _write(self, data: npt.NDArray[np.uint8], start: int) -> None:
        """Write *data*, unless an earlier write failed; after a failure, the file will not be kept."""
        try:
            self._keeps = self._keeps and os.pwrite(self._file.fileno(), data.data, start) == data.nbytes
        except OSError:
            self._keeps = False


@cache
def _decoder_versions() -> tuple[str, ...]:
    """Return the decoding libraries with their versions: another version may give other pixels."""
    return tuple(f"{name} {version(name)}" for name in _DECODERS)
