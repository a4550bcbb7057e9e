"""NVIDIA DALI: its webdataset reader and its decoder, on a GPU if there is one."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.utils.dlpack
from nvidia.dali import Pipeline, fn

from tta_pipeline.loading.baselines.baseline import Baseline
from tta_pipeline.loading.reader import Batch
from tta_pipeline.shards.shard_set import ShardSet

_COMPONENT = "image"


class DaliLoader(Baseline):
    """One pipeline with threads; decoding on the GPU (`mixed`) if CUDA is available."""

    outputs = ("uint8",)
    formats = ("raw",)

    @classmethod
    def prepare(cls, shard_set: ShardSet, folder: Path) -> None:
        """Write the index files of DALI's `wds2idx`, version 1.2, for each shard."""
        index = shard_set.index
        for number, shard in enumerate(shard_set.manifest.shards):
            places = np.flatnonzero(index.shards == number).tolist()
            lines = [f"{_COMPONENT} {index.offsets[place]} {index.sizes[place]} {place}" for place in places]
            (folder / f"{shard.name}.idx").write_text("\n".join([f"v1.2 {len(lines)}", *lines, ""]))

    def __iter__(self) -> Iterator[Batch]:
        """Yield every batch, in stored order."""
        pipeline = self._pipeline()
        stored = np.arange(len(self.order))
        for start in range(0, len(stored), self.batch_size):
            indices = stored[start : start + self.batch_size]
            (decoded,) = pipeline.run()
            # In the last batch, the reader has started over.
            yield self.batch(torch.utils.dlpack.from_dlpack(decoded.as_tensor())[: len(indices)], indices)

    def _pipeline(self) -> Any:
        names = [shard.name for shard in self.shard_set.manifest.shards]
        has_cuda = torch.cuda.is_available()
        pipeline = Pipeline(self.batch_size, max(1, self.num_threads), 0 if has_cuda else None)
        with pipeline:
            encoded = fn.readers.webdataset(
                paths=[str(self.shard_set.folder / name) for name in names],
                index_paths=[str(self.folder / f"{name}.idx") for name in names],
                ext=[_COMPONENT],
            )
            pipeline.set_outputs(fn.decoders.image(encoded, device="mixed" if has_cuda else "cpu"))
        pipeline.build()
        return pipeline
