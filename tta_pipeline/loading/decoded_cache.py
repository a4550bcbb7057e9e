"""Cache of decoded cells: for the next experiment on a cell, reading its pixels costs one copy.

The files of this `LocalCache` are on node-local disk, or in memory under /dev/shm. A file is named
`<64 hex digits>-<size>.pixels`, where the digits are the hash of everything that determines its pixels. It contains:

    uint8 (N, H, W, 3)   the pixels, in stored order
    64 + 8 N bytes       the xxh3 of each sample's pixels, compared at every read; they are sealed

The folder also has the features of frozen models (`evaluation.feature_cache`). A damaged file is removed, and the
shards are read instead.
"""

import hashlib
import json
import os
import re
from collections.abc import Collection, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from threading import Lock
from typing import NamedTuple, Self

import numpy as np
import numpy.typing as npt
from xxhash import xxh3_64_digest

from tta_pipeline.domain.ordering import Indices
from tta_pipeline.loading.copied_shards import DEFAULT_CACHE, ShardCache
from tta_pipeline.loading.local_cache import Draft, LocalCache
from tta_pipeline.loading.stored_pixels import Pixels, StoredPixels
from tta_pipeline.shards.checksums import CHECKSUM_BYTES, Digests
from tta_pipeline.shards.shard_set import ShardSet
from tta_pipeline.util.files import SEAL_BYTES, fsync_path, seal, unseal

OWN_FOLDER = "tta_pipeline-decoded"
_PIXELS = re.compile(r"[0-9a-f]{64}-([0-9]+)\.pixels")
_FEATURES = re.compile(r"[0-9a-f]{64}-([0-9a-f]{64})\.features")
_FORMAT = 3
_DECODERS = ("simplejpeg", "pillow")


@dataclass(frozen=True, kw_only=True)
class DecodedCache:
    """Cache of decoded cells below a folder."""

    folder: Path
    limit_bytes: int
    cache: ShardCache = DEFAULT_CACHE
    """Cache of the copies of shards at URLs, used while the shards are decoded."""

    @property
    def own_folder(self) -> Path:
        """The folder below the given folder that contains only these files."""
        return self.folder / OWN_FOLDER

    @property
    def files(self) -> LocalCache:
        """The files in this folder."""
        remedy = "set cache_dir to another folder, or to none"
        return LocalCache(folder=self.own_folder, limit_bytes=self.limit_bytes, remedy=remedy)

    def open_pixels(self, shard_set: ShardSet, image_size: int) -> Pixels:
        """Return the pixels of *shard_set* from the cache, or from the shards while adding them to the cache."""
        files, kind = self.files, _CacheEntry.of(shard_set, image_size)
        stored = StoredPixels(shard_set, image_size, cache=self.cache)
        if (checksums := kind.read_checksums(files)) is not None:
            return CachedPixels(files, kind, stored, checksums)
        if kind.file_bytes > self.limit_bytes:
            return stored
        if files.has(kind.name):
            with files.naming_faults("a damaged cell was removed", kind.file_bytes):
                files.discard(kind.name)
        return _CachingPixels(stored, files, kind)

    def find_unreferenced(self, manifests: Collection[str]) -> Iterator[Path]:
        """Yield the files that belong to none of *manifests*, given by sha256, or were made by another decoder.

        The unfinished files of killed processes are included.
        """

        def is_referenced(name: str) -> bool:
            if features := _FEATURES.fullmatch(name):
                return features[1] in manifests
            if pixels := _PIXELS.fullmatch(name):
                return name in (_file_name(sha256, int(pixels[1])) for sha256 in manifests)
            return True

        return self.files.find_unreferenced(is_referenced)


def _file_name(manifest_sha256: str, image_size: int) -> str:
    decisive = [_FORMAT, manifest_sha256, image_size, _decoder_versions()]
    return f"{hashlib.sha256(json.dumps(decisive).encode()).hexdigest()}-{image_size}.pixels"


class _CacheEntry(NamedTuple):
    """Name and sizes of a file of decoded pixels."""

    name: str
    """Name with the hash of everything that determines the pixels: shard set, image size and decoders."""
    num_samples: int
    image_bytes: int

    @classmethod
    def of(cls, shard_set: ShardSet, image_size: int) -> Self:
        name = _file_name(shard_set.manifest.sha256, image_size)
        return cls(name, shard_set.manifest.num_samples, image_size**2 * 3)

    @property
    def pixel_bytes(self) -> int:
        return self.num_samples * self.image_bytes

    @property
    def file_bytes(self) -> int:
        return self.pixel_bytes + SEAL_BYTES + self.num_samples * CHECKSUM_BYTES

    def read_checksums(self, files: LocalCache) -> Digests | None:
        """Return the checksums of the samples in the file, or None if it is not a whole file of this kind."""
        try:
            with (files.folder / self.name).open("rb") as file:
                if os.fstat(file.fileno()).st_size != self.file_bytes:
                    return None
                file.seek(self.pixel_bytes)
                checksums = unseal(file.read(self.file_bytes - self.pixel_bytes), self.name)
        except OSError:
            return None
        return None if checksums is None else np.frombuffer(checksums, f"V{CHECKSUM_BYTES}")


class CachedPixels:
    """Reads a file of decoded pixels and compares each sample's checksum; reads the shards if a sample is damaged."""

    def __init__(self, files: LocalCache, kind: _CacheEntry, stored: StoredPixels, checksums: Digests) -> None:
        self._files = files
        self._name = kind.name
        self._image_bytes = kind.image_bytes
        self._checksums = checksums
        self._stored = stored
        self._is_damaged = False
        self._lock = Lock()
        self._later = ExitStack()

    def open(self, stack: ExitStack) -> None:
        """Keep the file until *stack* closes; shards that are read stay open until then too."""
        # A thread may open the shards at any moment; their stack comes first, to close after the threads have ended.
        stack.enter_context(self._later)
        descriptor = None
        with suppress(OSError):
            descriptor = self._files.lease(self._name, stack)
        if descriptor is None:  # another process has just removed the file
            self._switch_to_shards()
        else:
            self._descriptor = descriptor

    def expect(self, indices: Indices) -> None:
        """Do nothing: the pixels are on local disk."""

    def fill(self, indices: Indices, out: npt.NDArray[np.uint8]) -> None:
        """Copy the samples at *indices* into *out*, adjacent samples at once."""
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
                os.preadv(self._descriptor, [out[first:last].data], start)
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
                    self._files.discard(self._name)
                self._is_damaged = True


class _CachingPixels:
    """Reads the shards, and writes every sample's pixels to a file; if writing fails, reading continues.

    Nothing is written if there is no space, or if another process is writing the same file.
    """

    def __init__(self, stored: StoredPixels, files: LocalCache, kind: _CacheEntry) -> None:
        self._stored = stored
        self._files = files
        self._kind = kind
        self._is_missing = np.ones(kind.num_samples, np.bool_)
        self._checksums = np.zeros(kind.num_samples, f"V{CHECKSUM_BYTES}")
        self._draft: Draft | None = None
        self._keeps = True

    def open(self, stack: ExitStack) -> None:
        """Open the shards and the file until *stack* closes; an unfinished file is then removed."""
        self._stored.open(stack)
        with self._files.naming_faults("a decoded cell was begun", self._kind.file_bytes):
            self._draft = self._files.begin(self._kind.name, self._kind.file_bytes, stack)

    def expect(self, indices: Indices) -> None:
        """Read ahead in shards at URLs, in the order of *indices*."""
        self._stored.expect(indices)

    def fill(self, indices: Indices, out: npt.NDArray[np.uint8]) -> None:
        """Read and decode the samples at *indices* into *out*, and write their pixels to the file."""
        self._stored.fill(indices, out)
        if self._draft is None:
            return
        for index, image in zip(indices.tolist(), out, strict=True):
            self._checksums[index] = np.void(xxh3_64_digest(image.data))
            self._write(self._draft, image, index * self._kind.image_bytes)
        self._is_missing[indices] = False

    def require_unchanged(self) -> None:
        """Make sure that the shards are unchanged; then, if every sample was read, give the file its name."""
        self._stored.require_unchanged()
        if self._draft is None or self._is_missing.any():
            return
        sealed = np.frombuffer(seal(self._checksums.tobytes(), self._kind.name), np.uint8)
        self._write(self._draft, sealed, self._kind.pixel_bytes)
        if self._keeps:
            with suppress(OSError):
                fsync_path(self._draft.path)
                self._draft.publish()

    def _write(self, draft: Draft, data: npt.NDArray[np.uint8], start: int) -> None:
        """Write *data*, unless an earlier write failed; after a failure, the file will not be kept."""
        try:
            self._keeps = self._keeps and os.pwrite(draft.descriptor, data.data, start) == data.nbytes
        except OSError:
            self._keeps = False


@cache
def _decoder_versions() -> tuple[str, ...]:
    """Return the decoding libraries with their versions: another version may decode to different pixels."""
    return tuple(f"{name} {version(name)}" for name in _DECODERS)
