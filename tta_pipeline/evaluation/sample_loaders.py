"""What an experiment reads its samples with: images from shards, or features that are kept."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import torch

from tta_pipeline.evaluation.feature_cache import FeatureLoader
from tta_pipeline.evaluation.open_stream import OpenStream
from tta_pipeline.loading.device import pins_memory
from tta_pipeline.loading.joined_sets import JoinedPixels
from tta_pipeline.loading.reader import Stream
from tta_pipeline.loading.stored_pixels import Pixels
from tta_pipeline.loading.stream_order import StreamOrder
from tta_pipeline.shards.shard_set import ShardSet


@dataclass(frozen=True, kw_only=True)
class SampleLoaders:
    """Makes the loaders of an experiment."""

    batch_size: int
    image_size: int
    device: torch.device
    num_threads: int
    open_pixels: Callable[[ShardSet, int], Pixels]

    def make(
        self, opened: OpenStream, whole: StreamOrder, part: slice, features: torch.Tensor | None
    ) -> Stream | FeatureLoader:
        """Return the samples of *part* of the order *whole*, or their *features* in place of images."""
        order = whole if part == slice(0, len(whole)) else replace(whole, indices=whole.indices[part])
        if features is None:
            return self.stream(opened, order)
        return FeatureLoader(shard_set=opened.joined, order=order, batch_size=self.batch_size, features=features[part])

    def stream(self, opened: OpenStream, order: StreamOrder) -> Stream:
        """Return the samples of *order* from the shards."""
        return Stream(
            shard_set=opened.joined,
            open_pixels=partial(JoinedPixels, open_pixels=self.open_pixels),
            order=order,
            batch_size=self.batch_size,
            image_size=self.image_size,
            num_threads=self.num_threads,
            pin_memory=pins_memory(self.device),
        )
