"""Base class of the loaders in the comparison, and their common functions."""

import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch.utils.data import Dataset

from tta_pipeline.data.images import decode_with_pillow, read_array
from tta_pipeline.loading.batch_loader import BatchLoader
from tta_pipeline.loading.reader import Batch
from tta_pipeline.shards.shard_set import ShardSet
from tta_pipeline.shards.stored_images import stored_images

Output = Literal["uint8", "float32"]
"""uint8 (B, H, W, 3) like a stream's batches, or normalised float32 (B, 3, H, W)."""
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""Mean and standard deviation of ImageNet's training images in [0, 1], as torchvision's weights expect them."""
_ARRAYS = (b"\x93NUMPY", b"PK\x03\x04")


@dataclass(frozen=True, kw_only=True)
class Baseline(BatchLoader):
    """A loader in the comparison, over the files that `prepare` made from one shard set."""

    shard_set: ShardSet
    folder: Path
    """Folder that `prepare` wrote."""
    output: Output
    """Content of the batches, one of `outputs`."""

    outputs: ClassVar[Sequence[Output]]
    """Outputs that the system can deliver; the first is the one in its own examples."""
    formats: ClassVar[Sequence[str]] = ("raw", "tensor")
    """Formats of a shard set that the system reads."""

    @classmethod
    def prepare(cls, shard_set: ShardSet, folder: Path) -> None:
        """Write *shard_set* into the empty *folder* in the system's own form; write nothing if it reads shards."""
        del shard_set, folder

    def rebatch(self, batches: Iterable[tuple[torch.Tensor, torch.Tensor]]) -> Iterator[Batch]:
        """Yield full batches from *batches* of images and indices, where each worker's last batch may not be full."""
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
        for number, (images, _) in enumerate(self.make_data_loader(dataset, positions)):
            yield self.batch_at(number, images)


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


def open_stored_images(shard_set: ShardSet) -> Iterator[Image.Image]:
    """Yield every image in stored order, opened as a file, so that writers of JPEG files copy the bytes."""
    with tempfile.NamedTemporaryFile() as file:
        for data in read_stored_files(shard_set):
            Path(file.name).write_bytes(data)
            with Image.open(file.name) as picture:
                yield picture


def _to_bytes(image: Image.Image | npt.NDArray[np.uint8]) -> torch.Tensor:
    return torch.from_numpy(np.array(image))
