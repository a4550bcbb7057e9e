"""`webdataset` itself, as the first system reads ImageNet-C with it."""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import torch
import webdataset as wds

from tta_pipeline.data.images import read_npy
from tta_pipeline.errors import LoaderError
from tta_pipeline.loading.baselines.baseline import Baseline, tensor_transform
from tta_pipeline.loading.reader import Batch
from tta_pipeline.shards.shard_set import ShardSet

_SHARD_SHUFFLE, _SAMPLE_SHUFFLE = 64, 1000
IMAGES = ("jpg", "jpeg", "png", "bmp", "webp")


class WebDatasetLoader(Baseline):
    """Shards shuffled, samples through a buffer of 1000, Pillow, ToTensor and Normalize at native size, WebLoader.

    Unlike in the first system, batches are filled up across the workers, so that no sample is dropped, and only images
    are decoded, since webdataset's other decoders would unpickle.
    """

    outputs = ("float32", "uint8")

    def __iter__(self) -> Iterator[Batch]:
        """Yield every batch, in webdataset's own order.

        Raises:
            LoaderError: webdataset cannot open files in the shard set's folder.
        """
        positions = {key: position for position, key in enumerate(self.shard_set.index.keys)}
        dataset = (
            wds.WebDataset(
                shard_paths(self.shard_set),
                shardshuffle=_SHARD_SHUFFLE,
                empty_check=False,  # more workers than shards
            )
            .shuffle(_SAMPLE_SHUFFLE)
            .decode("pil", only=list(IMAGES))
            .rename(image=";".join((*IMAGES, "npy")))
            .map(partial(_convert_sample, tensor_transform(self.output), positions))
            .batched(self.batch_size)
        )
        loader = wds.WebLoader(dataset, batch_size=None, num_workers=self.num_threads, pin_memory=self.pin_memory)
        yield from self.rebatch((images, torch.as_tensor(indices)) for images, indices in loader)


def shard_paths(shard_set: ShardSet) -> list[str]:
    """Return the paths of the shards in a form that webdataset can open.

    Raises:
        LoaderError: webdataset cannot open files in the shard set's folder.
    """
    folder = shard_set.folder.absolute()
    if "#" in str(folder) or "?" in str(folder):
        raise LoaderError(
            f"{folder} has a # or ?, so that webdataset takes it for a URL; expected another path: copy the shard set"
        )
    # Absolute, since webdataset passes a name that begins with `pipe:` to a shell.
    return [str(folder / shard.name) for shard in shard_set.manifest.shards]


def _convert_sample(
    transform: Callable[[Any], torch.Tensor], positions: Mapping[str, int], sample: Mapping[str, Any]
) -> tuple[torch.Tensor, int]:
    image = sample["image"]
    pixels = read_npy(image) if isinstance(image, bytes) else image
    return transform(pixels), positions[sample["__key__"]]
