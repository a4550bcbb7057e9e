"""`webdataset` itself, as the first system reads ImageNet-C with it."""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np
import torch
import webdataset as wds

from tta_pipeline.data.image_bytes import read_npy
from tta_pipeline.errors import LoaderError
from tta_pipeline.extras.loader_bench.baseline import Baseline, tensor_transform
from tta_pipeline.loading.reader import Batch
from tta_pipeline.loading.webdataset_paths import shard_paths
from tta_pipeline.shards.shard_set import ShardSet

_SHARD_SHUFFLE, _SAMPLE_SHUFFLE = 64, 1000
_IMAGES = ("jpg", "jpeg", "png", "bmp", "webp")


class WebDatasetLoader(Baseline):
    """Shards shuffled, samples through a buffer of 1000, Pillow, ToTensor and Normalize at native size, WebLoader.

    Unlike in the first system, batches are filled up across the workers, so that no sample is dropped, and only images
    are decoded, since webdataset's other decoders would unpickle.
    """

    outputs = ("float32", "uint8")
    shuffle = f"shards by {_SHARD_SHUFFLE}, samples by {_SAMPLE_SHUFFLE:,}"

    @classmethod
    def share(cls, shard_set: ShardSet, rank: int, num_ranks: int) -> ShardSet:
        """Return *shard_set* with the samples of every *num_ranks*-th shard, as webdataset deals them to processes."""
        shards = shard_set.index.shards
        if (num_shards := len(shard_set.manifest.shards)) < num_ranks:
            raise LoaderError(
                f"{shard_set.folder} has {num_shards} shards for {num_ranks} processes; expected at least one shard "
                "per process, since webdataset distributes whole shards: use fewer processes, or leave webdataset out"
            )
        return shard_set.select_samples(np.flatnonzero(shards % num_ranks == rank))

    def __iter__(self) -> Iterator[Batch]:
        """Yield every batch of the samples' shards, in webdataset's own order."""
        positions = {key: position for position, key in enumerate(self.shard_set.index.keys)}
        paths = shard_paths(self.shard_set)
        dataset = (
            wds.WebDataset(
                [paths[number] for number in np.unique(self.shard_set.index.shards)],
                shardshuffle=_SHARD_SHUFFLE,
                nodesplitter=_keep_all,  # these are the shards of this process alone
                empty_check=False,  # more workers than shards
            )
            .shuffle(_SAMPLE_SHUFFLE)
            .decode("pil", only=list(_IMAGES))
            .rename(image=";".join((*_IMAGES, "npy")))
            .map(partial(_convert_sample, tensor_transform(self.output), positions))
            .batched(self.batch_size)
        )
        loader = wds.WebLoader(dataset, batch_size=None, num_workers=self.num_threads, pin_memory=self.pin_memory)
        yield from self.rebatch((images, torch.as_tensor(indices)) for images, indices in loader)


def _keep_all(shards: Any) -> Any:
    return shards


def _convert_sample(
    transform: Callable[[Any], torch.Tensor], positions: Mapping[str, int], sample: Mapping[str, Any]
) -> tuple[torch.Tensor, int]:
    image = sample["image"]
    pixels = read_npy(image) if isinstance(image, bytes) else image
    return transform(pixels), positions[sample["__key__"]]
