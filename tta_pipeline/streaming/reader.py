"""Batches of decoded images, read from shards at the manifest's offsets by a few threads of one process."""

import math
import os
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from tta_pipeline.errors import StreamError
from tta_pipeline.shards.manifest import ShardSet
from tta_pipeline.streaming.decode import decode_into
from tta_pipeline.streaming.order import StreamOrder


@dataclass(frozen=True, kw_only=True, slots=True)
class Batch:
    """Some consecutive samples of a stream."""

    images: torch.Tensor
    """uint8 (B, H, W, 3), RGB."""
    labels: torch.Tensor
    """int64 (B,)."""
    indices: npt.NDArray[np.int64]
    """Positions in the sample index, shape (B,)."""


@dataclass(frozen=True, kw_only=True)
class Stream:
    """The samples of a shard set in one order, in batches that are full but for the last."""

    shard_set: ShardSet
    order: StreamOrder
    batch_size: int
    image_size: int
    """Height and width that every image must have, in pixels."""
    num_threads: int = 2
    """Decoding threads; they change the speed and nothing else."""

    def __len__(self) -> int:
        return math.ceil(len(self.order.indices) / self.batch_size)

    def __iter__(self) -> Iterator[Batch]:
        """Yield every batch, decoding the next ones meanwhile; at most `num_threads + 2` batches are held.

        Raises:
            StreamError: a sample cannot be read or decoded; the message names shard, key and offset.
        """
        with ExitStack() as stack:
            files = [
                stack.enter_context((self.shard_set.folder / s.name).open("rb")) for s in self.shard_set.manifest.shards
            ]
            descriptors = [file.fileno() for file in files]
            pool = stack.enter_context(ThreadPoolExecutor(self.num_threads, thread_name_prefix="tta-decode"))
            waiting: deque[Future[Batch]] = deque()
            stack.callback(lambda: [future.cancel() for future in waiting])
            for number in range(len(self)):
                waiting.append(pool.submit(self._batch, number, descriptors))
                if len(waiting) > self.num_threads + 1:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()

    def _batch(self, number: int, descriptors: list[int]) -> Batch:
        indices = self.order.indices[number * self.batch_size : (number + 1) * self.batch_size]
        images = np.empty((len(indices), self.image_size, self.image_size, 3), np.uint8)
        for image, index in zip(images, indices, strict=True):
            try:
                decode_into(self._read(int(index), descriptors), image)
            except (ValueError, OSError) as error:
                raise StreamError(f"{self._place(int(index))}: found {error}; verify the shard set") from error
        labels = torch.from_numpy(self.shard_set.index.labels[indices])
        return Batch(images=torch.from_numpy(images), labels=labels, indices=indices)

    def _read(self, index: int, descriptors: list[int]) -> bytes:
        samples = self.shard_set.index
        size_bytes = int(samples.sizes[index])
        data = os.pread(descriptors[samples.shards[index]], size_bytes, int(samples.offsets[index]))
        if len(data) != size_bytes:
            raise ValueError(f"{len(data)} bytes; expected {size_bytes}: the shard was cut while it was read")
        return data

    def _place(self, index: int) -> str:
        samples = self.shard_set.index
        shard = self.shard_set.manifest.shards[samples.shards[index]]
        return f"{self.shard_set.folder / shard.name}, sample {samples.keys[index]} at byte {samples.offsets[index]}"
