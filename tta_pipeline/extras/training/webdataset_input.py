"""Batches read by `webdataset`: shards from start to end, through its own shuffling.

It provides the bytes only. Its decoders, which would unpickle, are not used.
"""

import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import webdataset
from torch.utils.data import get_worker_info

from tta_pipeline.benchmarks.training_recipe import TrainingInputSettings
from tta_pipeline.domain.ordering import Indices
from tta_pipeline.errors import StreamError
from tta_pipeline.extras.training.augmented_pixels import Augment
from tta_pipeline.extras.training.worker_processes import read_in_processes
from tta_pipeline.loading.webdataset_paths import shard_paths
from tta_pipeline.shards.shard_set import ShardSet

_CHUNK = 16
"""Number of images that a worker process sends at a time."""


class _Sample:
    """Turns a sample of webdataset into its augmented image and its position."""

    def __init__(self, shard_set: ShardSet, augment: Augment, image_size: int) -> None:
        self._shard_set = shard_set
        self._augment = augment
        self._image_size = image_size
        self._check = shard_set.sample_check()
        self._positions = {key: position for position, key in enumerate(shard_set.index.keys)}

    def __call__(self, sample: Mapping[str, Any]) -> tuple[npt.NDArray[np.uint8], int]:
        """Return the image, uint8 (S, S, 3), and the position of the sample in the index."""
        place = f"{sample['__url__']}, sample {sample['__key__']}"
        # If keys are only unique within a shard, the index has the shard's name before them.
        names = (sample["__key__"], f"{Path(sample['__url__']).stem}/{sample['__key__']}")
        position = next((self._positions[name] for name in names if name in self._positions), None)
        if position is None:
            raise StreamError(
                f"{place}: the key is not in the manifest; expected one of its samples: verify the shard set"
            )
        alone = np.array([position])
        (expected,) = self._check.expected(alone)
        members = (value for value in sample.values() if isinstance(value, bytes))
        data = next((value for value in members if self._check.digest(value) == expected), None)
        if data is None:
            raise StreamError(
                f"{place}: the bytes are not those in the manifest; expected {self._check.name} {expected.hex()}: run "
                "`tta-pipeline shards verify`, then rebuild the shard set"
            )
        image = np.empty((self._image_size, self._image_size, 3), np.uint8)
        try:
            ((numbers,), (torch_seed,)) = self._augment.draws(alone)
            self._augment.apply(data, image, numbers, torch_seed)
        except ValueError as error:
            raise StreamError(
                f"{place}: the image cannot be decoded ({error}); expected an intact image: verify the shard set"
            ) from error
        return image, position


def read_by_webdataset(
    shard_set: ShardSet,
    augment: Augment,
    sizes: Sequence[int],
    *,
    image_size: int,
    num_workers: int,
    seed: tuple[int, ...],
) -> Iterator[tuple[torch.Tensor, Indices]]:
    """Yield images, uint8 (B, S, S, 3), and positions of the samples of each batch, in webdataset's order.

    Args:
        shard_set: Shards on a disk.
        augment: Augmentation of the images; its settings select the order too.
        sizes: Number of samples in each batch.
        image_size: Height and width of the images in pixels.
        num_workers: Number of worker processes.
        seed: Numbers that determine the order.
    """
    settings, number = augment.settings, int(np.random.SeedSequence(seed).generate_state(1, np.uint32)[0])
    size, rng = settings.buffer_samples, random.Random(number)  # noqa: S311 - a shuffle
    dataset = webdataset.DataPipeline(
        *_shards(_urls(shard_set), settings, number),
        webdataset.tarfile_to_samples(),
        webdataset.shuffle(size, initial=size, rng=rng),
        webdataset.map(_Sample(shard_set, augment, image_size)),
        webdataset.batched(_CHUNK, collation_fn=_stack),
    )
    # Never in this process: webdataset leaves its current file open when the consumer stops.
    with closing(read_in_processes(dataset, num_workers=num_workers, seed=number, batch_size=None)) as chunks:
        samples = (sample for chunk in chunks for sample in zip(*chunk, strict=True))
        for size in sizes:
            batch = list(islice(samples, size))
            if len(batch) < size:
                raise StreamError(
                    f"webdataset stopped early; expected the {sum(sizes)} samples of {shard_set.folder}: verify the "
                    "shard set"
                )
            images, positions = zip(*batch, strict=True)
            yield torch.stack(images), np.array(positions)
        if settings.shuffle != "resampled" and next(samples, None) is not None:
            raise StreamError(
                f"webdataset returned more samples than the shard set has; expected the {sum(sizes)} of "
                f"{shard_set.folder}: verify the shard set"
            )


def _urls(shard_set: ShardSet) -> list[str]:
    if shard_set.remote is not None:
        raise StreamError(
            f"The shards of {shard_set.folder} are at URLs, for which webdataset starts a shell; expected local "
            "shards: set `loader: indexed`, or download them"
        )
    return shard_paths(shard_set)


def _shards(urls: list[str], settings: TrainingInputSettings, seed: int) -> list[Any]:
    """Return the stages that give each worker process its shards."""
    if settings.shuffle == "resampled":
        return [webdataset.ResampledShards(urls, seed=seed, deterministic=True, worker_seed=_worker_number)]
    return [webdataset.SimpleShardList(urls, seed=seed), webdataset.split_by_worker]


def _worker_number() -> int:
    worker = get_worker_info()
    return 0 if worker is None else worker.id


def _stack(samples: Sequence[tuple[npt.NDArray[np.uint8], int]]) -> tuple[torch.Tensor, tuple[int, ...]]:
    images, positions = zip(*samples, strict=True)
    return torch.from_numpy(np.stack(images)), positions
