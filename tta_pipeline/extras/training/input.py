"""The batches of a training: shuffled in each epoch, augmented, divided over processes, and resumable at any batch."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import islice
from pathlib import Path

import numpy as np
import torch

from tta_pipeline.benchmarks.training_input import TrainingInputSettings
from tta_pipeline.domain.ordering import Indices
from tta_pipeline.errors import StreamError
from tta_pipeline.extras.training.augmented_pixels import Augment, AugmentedPixels, ImageFiles
from tta_pipeline.extras.training.epoch_order import cut_into_batches, epoch_order, num_epoch_samples, order_by_key
from tta_pipeline.extras.training.listed_files import ListedFiles
from tta_pipeline.extras.training.random_draws import Hashes, key_hashes
from tta_pipeline.extras.training.webdataset_input import read_by_webdataset
from tta_pipeline.extras.training.worker_processes import read_by_processes
from tta_pipeline.loading.reader import Batch, Stream
from tta_pipeline.loading.stored_pixels import StoredPixels
from tta_pipeline.loading.stream_order import order_of
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
    """Threads that decode; worker processes if torchvision draws the random numbers, or if the loader uses them."""
    rank: int = 0
    """Number of this process, from 0."""
    num_ranks: int = 1
    """Number of processes."""
    pin_memory: bool = False
    """Whether batches lie in pinned memory, from which a CUDA device copies asynchronously."""
    loose: tuple[Path, ...] | None = None
    """File from which each sample was made, for the loader `imagefolder`."""

    def __post_init__(self) -> None:
        """Refuse settings under which the samples cannot be read, or divided over the processes."""
        if self.settings.loader == "imagefolder" and self.loose is None:
            raise StreamError(
                f"{self.shard_set.folder} comes without loose files; the loader imagefolder expects the files from "
                "which the shards were made: choose another loader"
            )
        if self.settings.loader == "webdataset" and self.num_ranks > 1 and self.settings.shuffle != "resampled":
            raise StreamError(
                f"found loader webdataset with shuffle {self.settings.shuffle} for {self.num_ranks} processes, which "
                "would get different numbers of samples; expected resampled, or the loader indexed"
            )
        if not 0 <= self.rank < self.num_ranks:
            raise StreamError(f"rank is {self.rank} of {self.num_ranks}; expected 0 to {self.num_ranks - 1}")
        smallest = num_epoch_samples(self.shard_set.index, self.settings) // max(self.num_batches, 1)
        if smallest < self.num_ranks:
            raise StreamError(
                f"found a batch of {smallest} samples for {self.num_ranks} processes; expected at least one for each: "
                "raise batch_size, or start fewer processes"
            )

    @property
    def num_batches(self) -> int:
        """Number of batches in an epoch; each process takes its part of every batch."""
        return -(-num_epoch_samples(self.shard_set.index, self.settings) // self.batch_size)

    @cached_property
    def batch_sizes(self) -> tuple[int, ...]:
        """Number of samples in each batch of an epoch, over all processes."""
        count = num_epoch_samples(self.shard_set.index, self.settings)
        return tuple(len(part) for part in cut_into_batches(np.arange(count), self.batch_size))

    def epoch(self, number: int, *, skip_batches: int = 0) -> Iterator[Batch]:
        """Yield this process's part of every batch of epoch *number*.

        Images are uint8 (B, S, S, 3), overwritten once the next batch is requested.

        Args:
            number: Number of the epoch, from 0: every epoch has another order and other crops.
            skip_batches: Number of batches at the beginning that an interrupted training has already used. They are not
                decoded, except by the loader webdataset, which cannot start in the middle.
        """
        augment = Augment(settings=self.settings, hashes=self._hashes, seed=self.seed, epoch=number)
        if self.settings.loader == "webdataset":
            yield from islice(self._read_by_webdataset(augment), skip_batches, None)
        elif parts := self._parts(number)[skip_batches:]:
            if self.settings.loader == "imagefolder" or self.settings.draws_from_torch:
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
        is_dealt = self.settings.loader == "webdataset" and self.settings.shuffle != "stored"
        return max(1, self.num_threads) if is_dealt else None

    def _read_by_webdataset(self, augment: Augment) -> Iterator[Batch]:
        read = read_by_webdataset(
            self.shard_set,
            augment,
            [len(range(self.rank, size, self.num_ranks)) for size in self.batch_sizes],
            settings=self.settings,
            image_size=self.image_size,
            num_workers=self.num_threads,
            seed=(self.seed, augment.epoch, self.rank),
        )
        return (self._batch(images, indices) for images, indices in read)

    def _read_by_processes(self, parts: list[Indices], augment: Augment) -> Iterator[Batch]:
        images = read_by_processes(
            partial(self._augmented_pixels, augment),
            parts,
            image_size=self.image_size,
            num_workers=self.num_threads,
            pin_memory=self.pin_memory,
        )
        return (self._batch(*read) for read in zip(images, parts, strict=True))

    def _augmented_pixels(self, augment: Augment) -> AugmentedPixels:
        return AugmentedPixels(self._files(), augment)

    def _files(self) -> ImageFiles:
        if self.settings.loader == "indexed":
            return StoredPixels(self.shard_set, self.image_size)
        assert self.loose is not None
        return ListedFiles(self.shard_set, self.loose)

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
        order = epoch_order(self.shard_set.index, self._ranked, self.settings, seed=self.seed, epoch=number)
        return [batch[self.rank :: self.num_ranks] for batch in cut_into_batches(order, self.batch_size)]

    @cached_property
    def _ranked(self) -> Indices:
        return order_by_key(self.shard_set.index)

    @cached_property
    def _hashes(self) -> Hashes:
        return key_hashes(self.shard_set.index.keys)
