"""Read and decode single samples from shards, at the offsets in the manifest."""

from collections.abc import Iterator
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from tta_pipeline.domain.ordering import Indices
from tta_pipeline.errors import StreamError
from tta_pipeline.loading.copied_shards import DEFAULT_CACHE, ShardCache
from tta_pipeline.loading.decode import WrongSizeError, decode_into
from tta_pipeline.loading.shard_bytes import ShardBytes, open_shard_bytes
from tta_pipeline.shards.shard_set import ShardSet, forget_verified

_GAP_BYTES = 2**12
"""Largest gap between two samples, in bytes, that is read rather than skipped: headers, padding and label members."""


class Samples(Protocol):
    """Reads any samples of a shard set, for several threads at a time."""

    def open(self, stack: ExitStack) -> None:
        """Open the files until *stack* closes."""
        ...

    def expect(self, indices: Indices) -> None:
        """Announce that the samples at *indices*, shape (M,), will be read in about this order."""
        ...

    def require_unchanged(self) -> None:
        """Check that the bytes that were read match the manifest."""
        ...


class Pixels(Samples, Protocol):
    """Reads the pixels of samples."""

    def fill(self, indices: Indices, out: npt.NDArray[np.uint8]) -> None:
        """Put the pixels of the samples at *indices*, shape (B,), into *out*, uint8 (B, H, W, 3)."""
        ...


class StoredPixels:
    """Reads the shards of a shard set, on disk or at URLs, and decodes their images."""

    def __init__(self, shard_set: ShardSet, image_size: int, *, cache: ShardCache = DEFAULT_CACHE) -> None:
        del image_size  # the buffers have this size
        self._shard_set = shard_set
        self._check = shard_set.sample_check()
        self._shards: ShardBytes = open_shard_bytes(shard_set, cache)

    def open(self, stack: ExitStack) -> None:
        """Open the shards until *stack* closes."""
        self._shards.open(stack)

    def expect(self, indices: Indices) -> None:
        """Begin to copy shards at URLs, in the order of *indices*."""
        self._shards.expect(indices)

    def fill(self, indices: Indices, out: npt.NDArray[np.uint8]) -> None:
        """Read and decode the samples at *indices* into *out*."""
        for index, data, image in zip(indices.tolist(), self.read_files(indices), out, strict=True):
            try:
                decode_into(data, image)
            except ValueError as error:
                raise self.decoding_error(index, error) from error

    def read_files(self, indices: Indices) -> Iterator[bytes]:
        """Yield the image files of the samples at *indices*; adjacent samples are read at once."""
        samples, digest = self._shard_set.index, self._check.digest
        shards, offsets, sizes = samples.shards[indices], samples.offsets[indices], samples.sizes[indices]
        known = self._check.expected(indices)
        starts, ends = offsets.tolist(), (offsets + sizes).tolist()
        for first, last in adjacent_runs(shards, offsets, sizes):
            start = starts[first]
            block = self._read(int(shards[first]), start, ends[last - 1], indices[first:last])
            for number in range(first, last):
                # A copy, which is faster than creating and opening a view.
                data = block[starts[number] - start : ends[number] - start]
                yield (
                    data
                    if digest(data) == known[number]
                    else self._read_again(int(indices[number]), known[number], data)
                )

    def read_file(self, index: int) -> bytes:
        """Return the image file of the sample at *index*."""
        samples, alone = self._shard_set.index, np.array([index])
        start = int(samples.offsets[index])
        data = self._read(int(samples.shards[index]), start, start + int(samples.sizes[index]), alone)
        (expected,) = self._check.expected(alone)
        return data if self._check.digest(data) == expected else self._read_again(index, expected, data)

    def require_unchanged(self) -> None:
        """Check that no shard was written to since it was opened."""
        for number in self._shards.changed():
            raise self._changed_shard_error(number)

    def _read_again(self, index: int, expected: bytes, data: bytes) -> bytes:
        """Read the sample at *index* again from its origin, to replace the wrong bytes *data*."""
        start = int(self._shard_set.index.offsets[index])
        again = self._shards.read_anew(int(self._shard_set.index.shards[index]), start, start + len(data))
        if (found := self._check.digest(again)) != expected:
            raise self._changed_sample_error(index, found, expected)
        return again

    def _read(self, shard: int, start: int, end: int, indices: Indices) -> bytes:
        try:
            data = self._shards.read(shard, start, end, num_samples=len(indices))
        except OSError as error:
            raise self.unreadable_error(int(indices[0]), f"a read error ({error.strerror})") from error
        if len(data) != end - start:
            cut = start + len(data)
            index = next(int(i) for i in indices if self._end(int(i)) > cut)
            raise self.unreadable_error(index, f"the end of the file at byte {cut}, since the shard is truncated")
        return data

    def _end(self, index: int) -> int:
        return int(self._shard_set.index.offsets[index] + self._shard_set.index.sizes[index])

    def unreadable_error(self, index: int, found: str) -> StreamError:
        """Return the error for the sample at *index*, where *found* was read."""
        size_bytes = self._shard_set.index.sizes[index]
        return StreamError(
            f"{self._damaged_place(index)}: found {found}; expected an image of {size_bytes} bytes as in the manifest: "
            "a run of the benchmark makes its shards again, and `tta-pipeline shards verify` checks others"
        )

    def decoding_error(self, index: int, error: ValueError) -> StreamError:
        """Return the error for the sample at *index*, whose decoding raised *error*."""
        if isinstance(error, WrongSizeError):
            return StreamError(f"{self._place(index)}: found {error}")
        return self.unreadable_error(index, str(error))

    def _changed_sample_error(self, index: int, found: bytes, expected: bytes) -> StreamError:
        return StreamError(
            f"{self._damaged_place(index)}: found other bytes, of {self._check.name} {found.hex()}; expected "
            f"{expected.hex()}, as when the manifest was made: a run of the benchmark makes its shards again, and "
            "`tta-pipeline shards verify` checks others"
        )

    def _changed_shard_error(self, number: int) -> StreamError:
        samples = self._shard_set.index
        indices = np.flatnonzero(samples.shards == number)
        for index, expected in zip(indices.tolist(), self._check.expected(indices), strict=True):
            start = int(samples.offsets[index])
            data = self._shards.read_anew(number, start, start + int(samples.sizes[index]))
            if (found := self._check.digest(data)) != expected:
                return self._changed_sample_error(index, found, expected)
        path = self._shards.place(number)
        return StreamError(f"{path} was written to while it was read; expected shards not to change: run again")

    def _damaged_place(self, index: int) -> str:
        """Return the place of the damaged sample at *index*, and let the next run hash its shard."""
        forget_verified(Path(self._shards.place(int(self._shard_set.index.shards[index]))).parent)
        return self._place(index)

    def _place(self, index: int) -> str:
        samples = self._shard_set.index
        place = self._shards.place(int(samples.shards[index]))
        return f"{place}, sample {samples.keys[index]} at byte {samples.offsets[index]}"


def adjacent_runs(shards: Indices, offsets: Indices, sizes: Indices) -> Iterator[tuple[int, int]]:
    """Yield start and end of each run of positions whose samples are adjacent in a shard, to read them at once."""
    gaps = offsets[1:] - (offsets[:-1] + sizes[:-1])
    is_apart = (shards[1:] != shards[:-1]) | (gaps < 0) | (gaps > _GAP_BYTES)
    return pairwise([0, *(np.flatnonzero(is_apart) + 1).tolist(), len(offsets)])
