"""MosaicML's streaming, over its own MDS files."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from streaming import MDSWriter, StreamingDataset
from torch.utils.data import DataLoader

from tta_pipeline.loading.baselines.baseline import Baseline, open_stored_images
from tta_pipeline.loading.reader import Batch
from tta_pipeline.shards.shard_set import ShardSet


class MosaicmlLoader(Baseline):
    """DataLoader over StreamingDataset and JPEG files, which streaming decodes with Pillow."""

    outputs = ("uint8",)
    formats = ("raw",)

    @classmethod
    def prepare(cls, shard_set: ShardSet, folder: Path) -> None:
        """Write MDS files of unchanged image files and their positions."""
        with MDSWriter(columns={"image": "jpeg", "position": "int"}, out=str(folder)) as writer:
            for position, picture in enumerate(open_stored_images(shard_set)):
                writer.write({"image": picture, "position": position})

    def __iter__(self) -> Iterator[Batch]:
        """Yield every batch, in streaming's own order."""
        dataset = StreamingDataset(local=str(self.folder), batch_size=self.batch_size)
        loader = DataLoader(dataset, batch_size=self.batch_size, num_workers=self.num_threads, collate_fn=_collate)
        yield from self.rebatch(loader)


def _collate(samples: Sequence[dict[str, Any]]) -> tuple[torch.Tensor, torch.Tensor]:
    images = np.stack([np.asarray(sample["image"]) for sample in samples])
    return torch.from_numpy(images), torch.tensor([int(sample["position"]) for sample in samples])
