"""SPDL, Meta's pipeline of threads, with its own FFmpeg decoder."""

import os
from collections.abc import Iterator
from contextlib import ExitStack

import spdl.io
import torch
from spdl.pipeline import PipelineBuilder

from tta_pipeline.loading.baselines.baseline import Baseline
from tta_pipeline.loading.reader import Batch
from tta_pipeline.shards.ordering import Indices


class SpdlLoader(Baseline):
    """SPDL's threads read batches at the manifest's offsets, since SPDL has no reader of shards, and decode them."""

    outputs = ("uint8",)
    formats = ("raw",)

    def __iter__(self) -> Iterator[Batch]:
        """Yield every batch.

        FFmpeg's pixels are as bright as libjpeg's, except for rounding. Most files keep colours at half size, and
        FFmpeg enlarges them differently: there, single channels differed by up to 40 of 255, otherwise by 3.
        """
        index = self.shard_set.index
        starts = range(0, len(self.order), self.batch_size)
        with ExitStack() as stack:
            files = [
                stack.enter_context((self.shard_set.folder / shard.name).open("rb", buffering=0)).fileno()
                for shard in self.shard_set.manifest.shards
            ]

            def load(indices: Indices) -> tuple[torch.Tensor, Indices]:
                images = [
                    os.pread(files[index.shards[place]], int(index.sizes[place]), int(index.offsets[place]))
                    for place in indices.tolist()
                ]
                return spdl.io.to_torch(spdl.io.load_image_batch(images, width=None, height=None)), indices

            num_threads = max(1, self.num_threads)
            pipeline = (
                PipelineBuilder()
                .add_source([self.order.indices[start : start + self.batch_size] for start in starts])
                .pipe(load, concurrency=num_threads, output_order="input")
                .add_sink()
                .build(num_threads=num_threads)
            )
            with pipeline.auto_stop():
                for images, indices in pipeline.get_iterator():
                    yield self.batch(images, indices)
