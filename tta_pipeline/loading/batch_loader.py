"""Base class of all loaders except our own `Stream`: a `DataLoader` makes the same batches."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from tta_pipeline.data.images import ARRAYS, decode_with_pillow, read_array, read_image_header
from tta_pipeline.errors import StreamError
from tta_pipeline.loading.decode import fitting_remedy
from tta_pipeline.loading.device import pins_memory
from tta_pipeline.loading.joined_sets import JoinedSets
from tta_pipeline.loading.reader import Batch
from tta_pipeline.loading.stream_order import StreamOrder
from tta_pipeline.shards.ordering import Indices
from tta_pipeline.shards.shard_set import ShardSet


@dataclass(frozen=True, kw_only=True)
class BatchLoader(ABC):
    """A loader that reads every sample of a stream once, in batches that are all full except the last."""

    shard_set: ShardSet | JoinedSets
    order: StreamOrder
    """Order of all samples; a system with its own order ignores it."""
    batch_size: int
    image_size: int
    """Height and width of every image in pixels."""
    num_threads: int = 2
    """Number of worker processes or threads, as the system has them; 0: the consumer decodes, if the system can."""
    pin_memory: bool = field(default_factory=pins_memory)
    """Whether batches are in pinned memory, from which a device copies by itself."""

    def __len__(self) -> int:
        return math.ceil(len(self.order) / self.batch_size)

    @abstractmethod
    def __iter__(self) -> Iterator[Batch]:
        """Yield every batch."""

    def batch(self, images: torch.Tensor, indices: Indices) -> Batch:
        """Return *images* with the labels of the samples at *indices*."""
        return Batch(images, torch.from_numpy(self.shard_set.index.labels[indices]), indices)

    def batch_at(self, number: int, images: torch.Tensor) -> Batch:
        """Return *images* as batch *number* of the order, counted from 0."""
        start = number * self.batch_size
        return self.batch(images, self.order.indices[start : start + len(images)])

    def make_data_loader(
        self, dataset: Dataset[Any], positions: Sequence[int], collate: Callable[[Any], Any] | None = None
    ) -> "DataLoader[Any]":
        """Return a loader of the items of *dataset* at *positions*, in batches that *collate* makes."""
        return DataLoader(
            dataset,
            batch_size=self.batch_size,
            sampler=positions,
            num_workers=self.num_threads,
            pin_memory=self.pin_memory,
            collate_fn=collate,
        )


def decode_or_explain(data: bytes, *, image_size: int, place: str) -> torch.Tensor | str:
    """Return the image file *data* as decoded by Pillow, uint8 (H, W, 3), or the reason why it has no such image.

    The reason is returned and not raised, since an error raised in a worker process arrives with a long traceback.
    """
    expected = f"expected an image of {image_size}x{image_size} pixels, as the benchmark file says"
    try:
        is_array = read_image_header(data).encoding in ARRAYS
        pixels = np.array(read_array(data) if is_array else decode_with_pillow(data))
    except ValueError as error:
        return f"{place}: found {error}; {expected}"
    if pixels.shape != (image_size, image_size, 3):
        remedy = fitting_remedy(*pixels.shape[:2], expected=image_size)
        return f"{place}: found pixels of shape {pixels.shape}; {expected}: {remedy}"
    return torch.from_numpy(pixels)


def collate_images(images: Sequence[torch.Tensor | str]) -> torch.Tensor | str:
    """Return *images* as one tensor (B, H, W, 3), or the reason why one of them is missing."""
    reasons = [image for image in images if isinstance(image, str)]
    return reasons[0] if reasons else torch.stack([image for image in images if not isinstance(image, str)])


def require_images(images: torch.Tensor | str) -> torch.Tensor:
    """Return *images*, unless they are the reason of a failure.

    Raises:
        StreamError: *images* is a reason; the message is this reason.
    """
    if isinstance(images, str):
        raise StreamError(images)
    return images
