"""The batches of a training: shuffled in each epoch, augmented, divided over processes, and resumable at any batch."""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import Dataset

from tta_pipeline.benchmarks.training_recipe import TrainingInputSettings
from tta_pipeline.domain.ordering import Indices
from tta_pipeline.errors import StreamError
from tta_pipeline.extras.training.augmented_pixels import Augment, AugmentedPixels, Hashes, key_hashes
from tta_pipeline.extras.training.listed_files import ListedFiles
from tta_pipeline.extras.training.webdataset_input import read_by_webdataset
from tta_pipeline.extras.training.worker_processes import read_in_processes
from tta_pipeline.loading.reader import Batch, Stream
from tta_pipeline.loading.stored_pixels import StoredPixels
from tta_pipeline.loading.stream_order import order_of
from tta_pipeline.shards.sample_index import SampleIndex
from tta_pipeline.shards.shard_set import ShardSet


@dataclass(frozen=True, kw_only=True)
class TrainingInput:
    """The samples of a shard set as one process of a training reads them.

    The pixels of a sample depend only on seed, epoch and key: they are the same for any number of threads and
    processes, any division into shards, and any loader.
    """

    shard_set: ShardSet
    settings: TrainingInputSettings
    image_size: int
    """Height and width of the augmented images in pixels; the stored ones may have any size."""
    batch_size: int
    """Largest number of samples in a batch, over all processes."""
    seed: int
    num_threads: int = 2
    """Threads that decode; worker processes for webdataset, and if torchvision draws from its global generator."""
    rank: int = 0
    """Number of this process, from 0."""
    num_ranks: int = 1
    """Number of processes."""
    pin_memory: bool = False
    """Whether batches are in pinned memory, from which a CUDA device copies asynchronously."""
    loose: tuple[Path, ...] = ()
    """File from which each sample was made, for the loader `imagefolder`."""

    def __post_init__(self) -> None:
        """Refuse settings under which the samples cannot be divided over the processes."""
        if self.settings.loader == "webdataset" and self.num_ranks > 1 and self.settings.shuffle != "resampled":
            raise StreamError(
                f"With shuffle {self.settings.shuffle}, the loader webdataset would give {self.num_ranks} processes "
                "different numbers of samples; expected `shuffle: resampled` or `loader: indexed`: change one of them"
            )
        smallest = min(self.batch_sizes)
        if smallest < self.num_ranks:
            raise StreamError(
                f"A batch of {smallest} samples is too small for {self.num_ranks} processes; expected at least one "
                "sample per process: raise batch_size, or start fewer processes"
            )

    @cached_property
    def batch_sizes(self) -> tuple[int, ...]:
        """Number of samples in each batch of an epoch, over all processes; each takes its part of every batch."""
        return tuple(map(len, cut_into_batches(np.arange(self._num_samples), self.batch_size)))

    def epoch(self, number: int, *, skip_batches: int = 0) -> Iterator[Batch]:
        """Yield this process's part of every batch of epoch *number*.

        Images are uint8 (B, S, S, 3), overwritten once the next batch is requested.

        Args:
            number: Number of the epoch, from 0: every epoch has a different order and different crops.
            skip_batches: Number of batches at the beginning that an interrupted training has already used. They are not
                decoded, except by the loader webdataset, which cannot start in the middle.
        """
        augment = Augment(settings=self.settings, hashes=self._hashes, seed=self.seed, epoch=number)
        if self.settings.loader == "webdataset":
            yield from islice(self._read_by_webdataset(augment), skip_batches, None)
        elif parts := self._parts(number)[skip_batches:]:
            if self.settings.draws_from_torch:
                yield from self._read_by_processes(parts, augment)
            else:
                yield from self._stream(parts, augment)

    @property
    def num_inodes(self) -> int:
        """Number of files to read: shards, or loose files."""
        if self.settings.loader == "imagefolder":
            return len(self.shard_set.index)
        return len(self.shard_set.manifest.shards)

    @property
    def num_readers(self) -> int | None:
        """Number of worker processes if it affects the order of an epoch; None: only the seed does."""
        return max(1, self.num_threads) if self.settings.loader == "webdataset" else None

    def _read_by_webdataset(self, augment: Augment) -> Iterator[Batch]:
        read = read_by_webdataset(
            self.shard_set,
            augment,
            [len(range(self.rank, size, self.num_ranks)) for size in self.batch_sizes],
            image_size=self.image_size,
            num_workers=self.num_threads,
            seed=(self.seed, augment.epoch, self.rank),
        )
        return (self._batch(images, indices) for images, indices in read)

    def _read_by_processes(self, parts: list[Indices], augment: Augment) -> Iterator[Batch]:
        images = read_in_processes(
            _Batches(partial(self._augmented_pixels, augment), self.image_size),
            num_workers=self.num_threads,
            batch_sampler=[part.tolist() for part in parts],
            collate_fn=_identity,
            pin_memory=self.pin_memory,
        )
        with closing(images):
            yield from (self._batch(*read) for read in zip(images, parts, strict=True))

    def _augmented_pixels(self, augment: Augment) -> AugmentedPixels:
        if self.settings.loader == "imagefolder":
            return AugmentedPixels(ListedFiles(self.shard_set, self.loose), augment)
        return AugmentedPixels(StoredPixels(self.shard_set, self.image_size), augment)

    def _batch(self, images: torch.Tensor, indices: Indices) -> Batch:
        return Batch(images, torch.from_numpy(self.shard_set.index.labels[indices]), indices)

    def _stream(self, parts: list[Indices], augment: Augment) -> Stream:
        indices = np.concatenate(parts)
        return Stream(
            shard_set=self.shard_set,
            order=order_of(self.shard_set.index, indices),
            batch_size=max(map(len, parts)),
            batch_sizes=tuple(map(len, parts)),
            image_size=self.image_size,
            num_threads=self.num_threads,
            pin_memory=self.pin_memory,
            open_pixels=lambda *_: self._augmented_pixels(augment),
        )

    def _parts(self, number: int) -> list[Indices]:
        """Return this process's samples of each batch of epoch *number*."""
        rng = np.random.default_rng(np.random.SeedSequence([self.seed, number]))
        return [part[self.rank :: self.num_ranks] for part in cut_into_batches(self._order(rng), self.batch_size)]

    def _order(self, rng: np.random.Generator) -> Indices:
        """Return the positions of an epoch's samples, in the order of the epoch, shape (M,)."""
        index, shuffle = self.shard_set.index, self.settings.shuffle
        if shuffle == "exact":
            return self._by_key[rng.permutation(len(index))]
        shards = _samples_by_shard(index)
        if shuffle == "buffer":
            drawn = [shards[number] for number in rng.permutation(len(shards)).tolist()]
        else:
            drawn = list(_draw_shards(shards, self._num_samples, rng))
        return _shuffle_through_buffer(np.concatenate(drawn), self.settings.buffer_samples, rng)[: self._num_samples]

    @property
    def _num_samples(self) -> int:
        """Number of samples in an epoch."""
        return self.settings.epoch_samples or len(self.shard_set.index)

    @cached_property
    def _by_key(self) -> Indices:
        """Positions of the samples sorted by key, shape (N,): an order that is independent of the shards."""
        keys = self.shard_set.index.keys
        return np.array(sorted(range(len(keys)), key=keys.__getitem__), np.int64)

    @cached_property
    def _hashes(self) -> Hashes:
        return key_hashes(self.shard_set.index.keys)


class _Batches(Dataset[torch.Tensor]):
    """Whole batches of pixels. Each process opens the files itself: readers have locks, which cannot be sent."""

    def __init__(self, make_pixels: Callable[[], AugmentedPixels], image_size: int) -> None:
        self._make_pixels = make_pixels
        self._image_size = image_size

    def __getitems__(self, indices: list[int]) -> torch.Tensor:
        """Return the images of the samples at *indices*, uint8 (B, S, S, 3)."""
        images = torch.empty((len(indices), self._image_size, self._image_size, 3), dtype=torch.uint8)
        self._pixels.fill(np.array(indices), images.numpy())
        return images

    @cached_property
    def _pixels(self) -> AugmentedPixels:
        pixels = self._make_pixels()
        pixels.open(ExitStack())  # until the process ends
        return pixels


def _identity(images: torch.Tensor) -> torch.Tensor:
    return images


def cut_into_batches(order: Indices, batch_size: int) -> list[Indices]:
    """Cut *order* into as few batches of at most *batch_size* as possible; their sizes differ by at most one."""
    return np.array_split(order, math.ceil(len(order) / batch_size))


def _samples_by_shard(index: SampleIndex) -> Sequence[Indices]:
    """Return the samples of each shard in stored order, without empty shards."""
    edges = np.flatnonzero(np.diff(index.shards)) + 1
    return np.split(np.arange(len(index)), edges)


def _draw_shards(members: Sequence[Indices], count: int, rng: np.random.Generator) -> Iterator[Indices]:
    """Yield the samples of shards drawn with replacement, until there are *count*."""
    while count > 0:
        drawn = members[int(rng.integers(len(members)))]
        yield drawn
        count -= len(drawn)


def _shuffle_through_buffer(read: Indices, buffer_samples: int, rng: np.random.Generator) -> Indices:
    """Return *read* as shuffled by a buffer: whenever a sample enters the full buffer, a random one leaves it."""
    size = min(buffer_samples, len(read))
    buffer, left = read[:size].tolist(), np.empty_like(read)
    places = rng.integers(size, size=len(read) - size).tolist()
    for number, (place, entering) in enumerate(zip(places, read[size:].tolist(), strict=True)):
        left[number], buffer[place] = buffer[place], entering
    left[len(read) - size :] = rng.permutation(np.array(buffer, np.int64))
    return left
