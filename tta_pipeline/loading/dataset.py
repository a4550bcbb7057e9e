"""A shard set for the user's own code: a torch `Dataset`, or an `IterableDataset` of whole batches."""

import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.utils.data import Dataset, IterableDataset, get_worker_info

from tta_pipeline.data.image_bytes import ARRAYS, decode_with_pillow, read_array, read_image_header
from tta_pipeline.errors import StreamError
from tta_pipeline.loading.device import as_floats
from tta_pipeline.loading.reader import Stream
from tta_pipeline.loading.shards_at_url import open_location
from tta_pipeline.loading.stored_pixels import StoredPixels
from tta_pipeline.loading.stream_order import StreamOrder, shuffled_order, stored_order
from tta_pipeline.shards.set_facts import Manifest
from tta_pipeline.shards.shard_set import ShardSet


class Shards(Dataset[tuple[Any, int]]):
    """The samples of one shard set, or one rank's share of them, in stored order.

    Each sample is checked against the manifest when it is read.

    `shards[17]` is an image and its label, as in torchvision's `ImageFolder`; it also works in workers of a
    `DataLoader`. To read all samples, `stream` or `batches` is several times as fast.
    """

    def __init__(
        self,
        shard_set: ShardSet,
        *,
        transform: Callable[[Image.Image], Any] | None = None,
        rank: int = 0,
        num_ranks: int = 1,
    ) -> None:
        self.shard_set = _select_share(shard_set, rank, num_ranks)
        """The shard set; its index contains only the samples of this rank."""
        self.share = "" if num_ranks == 1 else f"rank {rank} of {num_ranks}"
        """Name of the share; empty: all samples."""
        self.transform = transform
        self._pixels: StoredPixels | None = None

    @property
    def manifest(self) -> Manifest:
        """The manifest of the shard set: cell, classes, shards, and how they were made."""
        return self.shard_set.manifest

    @property
    def classes(self) -> tuple[str, ...]:
        """The class names in the order of their labels."""
        return self.manifest.classes

    def __len__(self) -> int:
        return len(self.shard_set.index)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        """Return the image at *index*, a Pillow image in RGB or the result of the transform, and its label.

        Raises:
            IndexError: *index* is out of range.
            StreamError: the sample cannot be read or decoded, or differs from the manifest; the message names it.
        """
        position = range(len(self))[index]
        data = self._read_file(position)
        try:
            image = self._decode(data)
        except (OSError, ValueError, SyntaxError) as error:
            raise self._open_pixels().unreadable_error(position, str(error)) from error
        label = int(self.shard_set.index.labels[position])
        return (self.transform(image) if self.transform else image), label

    def stream(
        self,
        *,
        batch_size: int = 64,
        image_size: int | None = None,
        shuffle_seed: int | None = None,
        num_threads: int = 2,
    ) -> Stream:
        """Return the samples in batches `(images, labels, indices)` of uint8 (B, H, W, 3), int64 (B,) and (B,).

        Images are overwritten when the next batch is requested.

        Args:
            batch_size: Number of samples in a batch; the last batch may have fewer.
            image_size: Height and width of every image in pixels; None: the size of the first image.
            shuffle_seed: Seed of a permutation of these samples; None: the stored order.
            num_threads: Number of decoding threads; it changes only the speed.

        Raises:
            ManifestError: the shards are not those that the manifest describes.
        """
        self.shard_set.require_intact()
        return Stream(
            shard_set=self.shard_set,
            order=self._order(shuffle_seed),
            batch_size=batch_size,
            image_size=image_size or self.image_size,
            num_threads=num_threads,
        )

    def batches(self, *, batch_size: int = 64, shuffle_seed: int | None = None, num_threads: int = 2) -> "Batches":
        """Return an `IterableDataset` of images, float32 (B, 3, H, W) in [0, 1], and labels, int64 (B,).

        Pass it to `DataLoader(batches, batch_size=None)`, or iterate over it directly, which is as fast. Workers of a
        `DataLoader` share the batches, so that each batch comes once.
        """
        return Batches(self.stream(batch_size=batch_size, shuffle_seed=shuffle_seed, num_threads=num_threads))

    @property
    def image_size(self) -> int:
        """Height of the first image in pixels; a stream needs all images to have this height and width."""
        return read_image_header(self._read_file(0)).height

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_pixels": None}  # another process opens the files itself

    def _order(self, shuffle_seed: int | None) -> StreamOrder:
        index = self.shard_set.index
        return stored_order(index) if shuffle_seed is None else shuffled_order(index, seed=shuffle_seed)

    def _read_file(self, position: int) -> bytes:
        return self._open_pixels().read_file(position)

    def _open_pixels(self) -> StoredPixels:
        if self._pixels is None:
            pixels = StoredPixels(self.shard_set, 0)
            with ExitStack() as stack:
                pixels.open(stack)
                weakref.finalize(self, stack.pop_all().close)
            self._pixels = pixels
        return self._pixels

    def _decode(self, data: bytes) -> Image.Image:
        if read_image_header(data).encoding in ARRAYS:
            return Image.fromarray(np.ascontiguousarray(read_array(data)))
        return decode_with_pillow(data)


class Batches(IterableDataset[tuple[torch.Tensor, torch.Tensor]]):
    """The batches of a stream as float images and labels; see `Shards.batches`."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream

    def __len__(self) -> int:
        return len(self.stream)

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Yield images, float32 (B, 3, H, W) in [0, 1], and labels, int64 (B,)."""
        for batch in self._stream_of_worker():
            yield as_floats(batch.images), batch.labels

    def _stream_of_worker(self) -> Stream:
        """Return the stream of this worker's share, every n-th batch; outside a `DataLoader`, all batches."""
        worker = get_worker_info()
        if worker is None:
            return self.stream
        order, size = self.stream.order, self.stream.batch_size
        starts = range(worker.id * size, len(order), worker.num_workers * size)
        parts = [order.indices[start : start + size] for start in starts]
        indices = np.concatenate(parts) if parts else order.indices[:0]
        return replace(self.stream, order=replace(order, indices=indices))


def open_shards(
    location: Path | str,
    *,
    transform: Callable[[Image.Image], Any] | None = None,
    rank: int = 0,
    num_ranks: int = 1,
) -> Shards:
    """Open a shard set without reading its images; shards at a URL without a manifest are read in full once.

    With *num_ranks* processes, rank i % num_ranks gets the sample at position i of the stored order. Each sample comes
    once, and the ranks' sample counts differ by at most one. Each rank gets the same mixture of classes in any stored
    order, since it does not get a contiguous range.

    Args:
        location: Folder of `manifest.json`, such as `shards/fog/5`, or a URL: `https://host/shards/fog/5`, `s3://...`.
        transform: Function applied to each Pillow image that `shards[17]` returns.
        rank: Number of this process, such as `RANK` of torchrun: 0 to num_ranks - 1.
        num_ranks: Number of processes that share the samples, such as `WORLD_SIZE`; at most the number of samples.

    Raises:
        ManifestError: there is no shard set, or manifest and index disagree.
        ImagesError, ClassMapError: see `open_location`.
        StreamError: there is no such rank, or no sample for the rank; see also `open_location`.
    """
    return Shards(open_location(location), transform=transform, rank=rank, num_ranks=num_ranks)


def _select_share(shard_set: ShardSet, rank: int, num_ranks: int) -> ShardSet:
    """Return *shard_set* with only the samples of *rank*.

    Raises:
        StreamError: there is no such rank, or no sample for the rank.
    """
    if not 0 <= rank < num_ranks:
        raise StreamError(f"rank is {rank} of {num_ranks}; expected a rank from 0 to num_ranks - 1")
    if num_ranks == 1:
        return shard_set
    num_samples = len(shard_set.index)
    if num_ranks > num_samples:
        raise StreamError(
            f"{num_ranks} ranks are too many for the {num_samples} samples of {shard_set.folder}; expected at least "
            "one sample per rank: use fewer ranks"
        )
    return shard_set.select_samples(np.arange(rank, num_samples, num_ranks))
