"""Base class of the loaders that are compared, and their common functions."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset

from tta_pipeline.data.image_bytes import decode_with_pillow, read_array
from tta_pipeline.domain.ordering import Indices
from tta_pipeline.loading.dataset import open_shards
from tta_pipeline.loading.device import pins_memory
from tta_pipeline.loading.reader import Batch
from tta_pipeline.loading.stream_order import StreamOrder
from tta_pipeline.shards.shard_set import ShardSet
from tta_pipeline.shards.stored_images import stored_images

Output = Literal["uint8", "float32"]
"""uint8 (B, H, W, 3) like a stream's batches, or normalised float32 (B, 3, H, W)."""
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""Mean and standard deviation of ImageNet's training images in [0, 1], as torchvision's weights expect them."""
_ARRAYS = (b"\x93NUMPY", b"PK\x03\x04")


@dataclass(frozen=True, kw_only=True)
class Baseline(ABC):
    """A loader in the comparison, over the files that `prepare` made from one shard set.

    It reads every sample once, in batches that are all full except the last.
    """

    shard_set: ShardSet
    order: StreamOrder
    """Order of all samples; a system with its own order ignores it."""
    folder: Path
    """Folder that `prepare` wrote."""
    batch_size: int
    image_size: int
    """Height and width of every image in pixels."""
    num_threads: int
    """Number of worker processes or threads, whichever the system uses; 0: the consumer decodes, if supported."""
    output: Output
    """Content of the batches, one of `outputs`."""
    pin_memory: bool = field(default_factory=pins_memory)
    """Whether batches are in pinned memory, from which a device copies by itself."""

    outputs: ClassVar[Sequence[Output]]
    """Outputs that the system can deliver; the first is the one in its own examples."""
    shuffle: ClassVar[str] = "none"
    """How the system shuffles the samples, in words."""

    @classmethod
    def share(cls, shard_set: ShardSet, rank: int, num_ranks: int) -> ShardSet:
        """Return *shard_set* with only the samples of process *rank*, divided as by `open_shards`.

        Raises:
            StreamError: the process gets no sample.
        """
        return open_shards(shard_set.folder, rank=rank, num_ranks=num_ranks).shard_set

    @classmethod
    def prepare(cls, shard_set: ShardSet, folder: Path) -> None:
        """Write the samples of *shard_set* into the empty *folder* in the system's own form, unless it reads shards."""
        del shard_set, folder

    @abstractmethod
    def __iter__(self) -> Iterator[Batch]:
        """Yield every batch."""

    def batch(self, images: torch.Tensor, indices: Indices) -> Batch:
        """Return *images* with the labels of the samples at *indices*."""
        return Batch(images, torch.from_numpy(self.shard_set.index.labels[indices]), indices)

    def rebatch(self, batches: Iterable[tuple[torch.Tensor, torch.Tensor]]) -> Iterator[Batch]:
        """Yield full batches from *batches* of images and indices, of which each worker's last may not be full."""
        rests: list[tuple[torch.Tensor, torch.Tensor]] = []
        for images, indices in batches:
            if len(images) == self.batch_size:
                yield self.batch(images, indices.numpy())
            else:
                rests.append((images, indices))
        if rests:
            images, indices = (torch.cat(parts) for parts in zip(*rests, strict=True))
            for start in range(0, len(images), self.batch_size):
                part = slice(start, start + self.batch_size)
                yield self.batch(images[part], indices[part].numpy())

    def map_style_batches(self, dataset: "Dataset[Any]", positions: Sequence[int]) -> Iterator[Batch]:
        """Yield batches of *dataset*, which has pairs of image and label; *positions* are in the stream's order."""
        loader: DataLoader[Any] = DataLoader(
            dataset,
            batch_size=self.batch_size,
            sampler=positions,
            num_workers=self.num_threads,
            pin_memory=self.pin_memory,
        )
        for number, (images, _) in enumerate(loader):
            start = number * self.batch_size
            yield self.batch(images, self.order.indices[start : start + len(images)])


def tensor_transform(output: Output) -> Callable[[Any], torch.Tensor]:
    """Return the function from image to tensor: normalised as in the first system, or uint8 (H, W, 3)."""
    if output == "uint8":
        return _to_bytes
    from torchvision.transforms import Compose, Normalize, ToTensor  # two seconds; most readers do not need it

    as_first_system: Callable[[Any], torch.Tensor] = Compose([ToTensor(), Normalize(MEAN, STD)])
    return as_first_system


def decode_image(data: bytes) -> Image.Image | npt.NDArray[np.uint8]:
    """Return the image file *data* decoded by Pillow, or the pixels of a tensor."""
    return read_array(data) if data.startswith(_ARRAYS) else decode_with_pillow(data)


def read_stored_files(shard_set: ShardSet) -> Iterator[bytes]:
    """Yield every image file of *shard_set* in stored order."""
    return (image.read() for image in stored_images(shard_set))


def _to_bytes(image: Image.Image | npt.NDArray[np.uint8]) -> torch.Tensor:
    return torch.from_numpy(np.array(image))
