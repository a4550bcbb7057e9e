"""Cells kept as decoded pixels, for the next experiment on them: reading them then costs a copy.

On node-local disk, or in memory under /dev/shm. A file is `<manifest sha256>-<size>.pixels`, uint8 (N, H, W, 3) in
stored order; the longest unused go when the limit would be passed.
"""

import os
import uuid
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

import numpy as np
import numpy.typing as npt

from tta_pipeline.errors import StreamError
from tta_pipeline.files import fsync_path
from tta_pipeline.shards.manifest import ShardSet
from tta_pipeline.streaming.order import Indices
from tta_pipeline.streaming.pixels import Pixels, StoredPixels

_SUFFIX = ".pixels"


@dataclass(frozen=True, kw_only=True)
class DecodedCells:
    """A folder of decoded cells."""

    folder: Path
    limit_bytes: int

    def open_pixels(self, shard_set: ShardSet, image_size: int) -> Pixels:
        """Return the pixels of *shard_set*: the kept ones, or those of the shards, which are kept as they are read."""
        path = self.folder / f"{shard_set.manifest.sha256}-{image_size}{_SUFFIX}"
        size_bytes = shard_set.manifest.num_samples * image_size**2 * 3
        if path.exists() and path.stat().st_size == size_bytes:
            return KeptPixels(path, image_size)
        if size_bytes > self.limit_bytes:
            return StoredPixels(shard_set, image_size)
        self.folder.mkdir(parents=True, exist_ok=True)
        self._make_room(size_bytes)
        return _KeepingPixels(shard_set, image_size, path)

    def _make_room(self, size_bytes: int) -> None:
        """Remove the files that were used longest ago; whoever reads one has it open and reads on."""
        kept = sorted(self.folder.glob(f"*{_SUFFIX}"), key=lambda path: path.stat().st_atime_ns)
        total_bytes = sum(path.stat().st_size for path in kept) + size_bytes
        for path in kept:
            if total_bytes <= self.limit_bytes:
                return
            total_bytes -= path.stat().st_size
            path.unlink()


class KeptPixels:
    """Reads a file of decoded pixels."""

    def __init__(self, path: Path, image_size: int) -> None:
        self._path = path
        self._image_bytes = image_size**2 * 3

    def __enter__(self) -> Self:
        self._file: BinaryIO = self._path.open("rb", buffering=0)
        os.utime(self._path)  # used just now, whether or not the file system notes it
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._file.close()

    def fill(self, indices: Indices, out: npt.NDArray[np.uint8]) -> None:
        """Copy the samples at *indices* into *out*, those that lie together at once.

        Raises:
            StreamError: the file was cut meanwhile.
        """
        edges = [0, *(np.flatnonzero(np.diff(indices) != 1) + 1).tolist(), len(indices)]
        for first, last in pairwise(edges):
            start = int(indices[first]) * self._image_bytes
            found = os.preadv(self._file.fileno(), [out[first:last].data], start)
            if found != (last - first) * self._image_bytes:
                raise StreamError(
                    f"{self._path}: found the end of the file at byte {start + found}; expected the pixels of sample "
                    f"{indices[last - 1]}: remove the file"
                )

    def require_unchanged(self) -> None:
        """Do nothing: only whole files have this name, and nobody writes into them."""


class _KeepingPixels:
    """Reads the shards, and keeps every sample's pixels until all are there."""

    def __init__(self, shard_set: ShardSet, image_size: int, path: Path) -> None:
        self._stored = StoredPixels(shard_set, image_size)
        self._image_bytes = image_size**2 * 3
        self._is_missing = np.ones(shard_set.manifest.num_samples, np.bool_)
        self._path = path
        self._beside = path.with_name(f".{uuid.uuid4().hex}-{path.name}")
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.enter_context(self._stored)
            self._file = stack.enter_context(self._beside.open("xb", buffering=0))
            stack.callback(self._beside.unlink, missing_ok=True)
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stack.close()

    def fill(self, indices: Indices, out: npt.NDArray[np.uint8]) -> None:
        """Read and decode the samples at *indices* into *out*, and keep them."""
        self._stored.fill(indices, out)
        for index, image in zip(indices.tolist(), out, strict=True):
            os.pwrite(self._file.fileno(), image, index * self._image_bytes)
        self._is_missing[indices] = False

    def require_unchanged(self) -> None:
        """Make sure of the shards; then, if every sample was read, give the file its name."""
        self._stored.require_unchanged()
        if not self._is_missing.any():
            fsync_path(self._beside)
            self._beside.replace(self._path)
