"""Batches of decoded images, read from shards at the manifest's offsets by a few threads of one process.

The consumer uses a batch while the threads fill the next ones. Buffers are created once and reused, so memory is
bounded by `prefetch + 1` batches and the blocks being read, whatever the size of the dataset.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, NamedTuple

import torch

from tta_pipeline.domain.ordering import Indices
from tta_pipeline.loading.decode_pool import DecodePool
from tta_pipeline.loading.joined_sets import JoinedSets
from tta_pipeline.loading.stored_pixels import Pixels, StoredPixels
from tta_pipeline.loading.stream_order import StreamOrder
from tta_pipeline.shards.shard_set import ShardSet

_PIECE_BYTES = 2**21
"""Bytes of pixels that a thread decodes at a time: enough to hide the cost of the hand-over, and few enough that the
threads share a batch."""


_UNALIGNED_BYTES = 16
"""Offset of the images in their memory, which is aligned to 64 bytes or more. Rows that begin at a multiple of 32 bytes
are written by libjpeg-turbo past the processor's caches (`vmovntdq`): this takes 6 % longer here, and the next reader
would wait for the rows too."""


class _Piece(NamedTuple):
    """A part of a batch: consecutive samples, the end excluded."""

    number: int
    start: int
    end: int


class Batch(NamedTuple):
    """Consecutive samples of a stream. The images are overwritten once the next batch has been requested."""

    images: torch.Tensor
    """Pixels, uint8 (B, H, W, 3), RGB; in pinned memory if the stream has `pin_memory`."""
    labels: torch.Tensor
    """Labels, int64 (B,)."""
    indices: Indices
    """Positions of the samples in the sample index, shape (B,)."""


@dataclass(frozen=True, kw_only=True)
class Stream:
    """The samples of a shard set in one order, in batches that are all full except the last."""

    shard_set: ShardSet | JoinedSets
    order: StreamOrder
    batch_size: int
    """Number of samples in a batch; with `batch_sizes`, the largest of them."""
    image_size: int
    """Height and width that every image must have, in pixels."""
    num_threads: int = 2
    """Number of decoding threads; 0: the consumer decodes. It changes only the speed."""
    prefetch: int = 3
    """Number of batches that are filled while the consumer has one."""
    pin_memory: bool = False
    """Whether batches are in pinned memory, from which a device copies by itself."""
    open_pixels: Callable[[Any, int], Pixels] = StoredPixels
    """Function that opens the pixels of a shard set, given the set and the image size."""
    batch_sizes: tuple[int, ...] | None = None
    """Number of samples in each batch; None: all batches are full except the last."""

    def __len__(self) -> int:
        return math.ceil(len(self.order) / self.batch_size) if self.batch_sizes is None else len(self.batch_sizes)

    def __iter__(self) -> Iterator[Batch]:
        """Yield every batch; if the consumer stops early, the threads end after their current images.

        Raises:
            StreamError: a sample cannot be read or decoded, or a shard changed meanwhile; the message names the shard,
                key and offset.
        """
        with ExitStack() as stack:
            pixels = self.open_pixels(self.shard_set, self.image_size)
            pixels.open(stack)
            pixels.expect(self.order.indices)
            buffers = [self._make_buffer() for _ in range(min(self.prefetch + 1, len(self)))]
            outs = [buffer.numpy() for buffer in buffers]

            starts = self._batch_starts()

            def fill(piece: _Piece) -> None:
                start = starts[piece.number]
                indices = self.order.indices[start + piece.start : start + piece.end]
                pixels.fill(indices, outs[piece.number % len(outs)][piece.start : piece.end])

            pool = stack.enter_context(DecodePool(self.num_threads, fill))
            labels = torch.from_numpy(self.shard_set.index.labels[self.order.indices])
            num_given, num_missing = 0, dict[int, int]()
            for number in range(len(self)):
                while num_given < min(number + len(buffers), len(self)):
                    num_missing[num_given] = self._submit_batch(pool, num_given)
                    num_given += 1
                while num_missing[number]:
                    num_missing[pool.take().number] -= 1
                del num_missing[number]
                if number == len(self) - 1:
                    pixels.require_unchanged()
                start, size = starts[number], self._size_of_batch(number)
                indices = self.order.indices[start : start + size]
                yield Batch(buffers[number % len(buffers)][:size], labels[start : start + size], indices)

    def _submit_batch(self, pool: DecodePool[_Piece], number: int) -> int:
        """Give the parts of batch *number* to *pool*, and return the number of parts."""
        size = self._size_of_batch(number)
        starts = range(0, size, max(1, _PIECE_BYTES // (self.image_size**2 * 3)))
        for start in starts:
            pool.give(_Piece(number, start, min(start + starts.step, size)))
        return len(starts)

    def _batch_starts(self) -> Sequence[int]:
        """Return the position in the order at which each batch begins."""
        if self.batch_sizes is None:
            return range(0, len(self.order), self.batch_size)
        return [0, *accumulate(self.batch_sizes[:-1])]

    def _size_of_batch(self, number: int) -> int:
        if self.batch_sizes is not None:
            return self.batch_sizes[number]
        return min(self.batch_size, len(self.order) - number * self.batch_size)

    def _make_buffer(self) -> torch.Tensor:
        shape = (min(self.batch_size, len(self.order)), self.image_size, self.image_size, 3)
        memory = torch.empty(_UNALIGNED_BYTES + math.prod(shape), dtype=torch.uint8, pin_memory=self.pin_memory)
        return memory[_UNALIGNED_BYTES:].view(shape)
