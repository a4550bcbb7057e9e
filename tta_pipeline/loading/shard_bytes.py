"""Read byte ranges of shards, either in place or from copies; no other module depends on which."""

import os
from collections.abc import Iterator
from contextlib import ExitStack
from typing import BinaryIO

from tta_pipeline.domain.ordering import Indices
from tta_pipeline.errors import StreamError
from tta_pipeline.loading.copied_shards import CopiedShards, ShardCache
from tta_pipeline.shards.shard_set import ShardSet


class LocalShards:
    """Shards on a file system."""

    def __init__(self, shard_set: ShardSet) -> None:
        self._paths = [shard_set.folder / shard.name for shard in shard_set.manifest.shards]
        self._files: list[BinaryIO] = []

    def open(self, stack: ExitStack) -> None:
        """Open the shards until *stack* closes."""
        for number in range(len(self._paths)):
            self._files.append(stack.enter_context(self._open(number)))
        self._descriptors = [file.fileno() for file in self._files]
        self._stamps = [_stamp(file) for file in self._files]

    def expect(self, indices: Indices) -> None:
        """Do nothing: the kernel reads ahead."""

    def read(self, shard: int, start: int, end: int, *, num_samples: int) -> bytes:
        """Return the bytes from *start* to *end*; fewer if the shard ends earlier.

        Raises:
            OSError: the bytes cannot be read.
        """
        del num_samples
        return self.read_anew(shard, start, end)

    def read_anew(self, shard: int, start: int, end: int) -> bytes:
        """Return the same bytes from the shard's origin, from which they were read."""
        return os.pread(self._descriptors[shard], end - start, start)

    def changed(self) -> Iterator[int]:
        """Yield the shards that were written to since they were opened."""
        for number, file in enumerate(self._files):
            if _stamp(file) != self._stamps[number]:
                yield number

    def place(self, shard: int) -> str:
        """Return the path of the shard."""
        return str(self._paths[shard])

    def _open(self, number: int) -> BinaryIO:
        path = self._paths[number]
        try:
            return path.open("rb", buffering=0)
        except OSError as error:
            raise StreamError(
                f"{path} cannot be opened ({error.strerror}); expected a shard that the manifest lists: verify the "
                "shard set"
            ) from error


ShardBytes = LocalShards | CopiedShards
"""Reads byte ranges of shards, numbered as in the manifest, for several threads at a time."""


def open_shard_bytes(shard_set: ShardSet, cache: ShardCache) -> ShardBytes:
    """Return the reader of the bytes of *shard_set*; *cache* keeps copies of shards."""
    is_read_in_place = shard_set.remote is None and cache.root is None
    return LocalShards(shard_set) if is_read_in_place else CopiedShards(shard_set, cache)


def _stamp(file: BinaryIO) -> tuple[int, int]:
    status = os.fstat(file.fileno())
    return status.st_size, status.st_mtime_ns
