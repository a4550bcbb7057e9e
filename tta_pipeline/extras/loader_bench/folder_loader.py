"""Loose files, as most evaluation code reads them: torchvision's `ImageFolder`."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torchvision.datasets import ImageFolder

from tta_pipeline.extras.loader_bench.baseline import Baseline, decode_image, tensor_transform
from tta_pipeline.loading.reader import Batch
from tta_pipeline.shards.shard_set import ShardSet
from tta_pipeline.shards.stored_images import stored_images


class FolderLoader(Baseline):
    """DataLoader over `ImageFolder`; the scan of the folders is part of its construction."""

    outputs = ("float32", "uint8")

    @classmethod
    def prepare(cls, shard_set: ShardSet, folder: Path) -> None:
        """Write every sample as a separate file, in a folder for each class."""
        labels = shard_set.index.labels
        for position, image in enumerate(stored_images(shard_set)):
            path = folder / f"{labels[position]:05d}" / f"{position:08d}"
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(image.read())

    def __iter__(self) -> Iterator[Batch]:
        """Yield every batch."""
        dataset = ImageFolder(
            str(self.folder), tensor_transform(self.output), loader=_load, is_valid_file=lambda _: True
        )
        place_of = {int(Path(path).name): place for place, (path, _) in enumerate(dataset.samples)}
        yield from self.map_style_batches(dataset, [place_of[position] for position in self.order.indices.tolist()])


def _load(path: str) -> Any:
    return decode_image(Path(path).read_bytes())
