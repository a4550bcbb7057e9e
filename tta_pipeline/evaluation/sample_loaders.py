"""The loader of an experiment: of images from shards or loose files, or of features that are kept."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TypedDict

import torch

from tta_pipeline.benchmarks.experiment_specs import Experiment
from tta_pipeline.evaluation.feature_cache import FeatureLoader
from tta_pipeline.evaluation.open_stream import OpenStream
from tta_pipeline.loading.batch_loader import BatchLoader
from tta_pipeline.loading.device import pins_memory
from tta_pipeline.loading.joined_sets import JoinedPixels
from tta_pipeline.loading.loose_files import LooseFileLoader
from tta_pipeline.loading.reader import Stream
from tta_pipeline.loading.stored_pixels import Pixels
from tta_pipeline.loading.stream_order import StreamOrder
from tta_pipeline.shards.shard_set import ShardSet


class _Settings(TypedDict):
    order: StreamOrder
    batch_size: int
    image_size: int
    num_threads: int
    pin_memory: bool


@dataclass(frozen=True, kw_only=True)
class SampleLoaders:
    """Makes the loaders of an experiment."""

    experiment: Experiment
    image_size: int
    device: torch.device
    num_threads: int
    open_pixels: Callable[[ShardSet, int], Pixels]

    def make(
        self, opened: OpenStream, whole: StreamOrder, part: slice, features: torch.Tensor | None
    ) -> Stream | BatchLoader:
        """Return the samples of *part* of the order *whole*, from *features* or by the experiment's loader."""
        order = whole if part == slice(0, len(whole)) else replace(whole, indices=whole.indices[part])
        settings = self._settings(order)
        if features is not None:
            return FeatureLoader(shard_set=opened.joined, features=features[part], **settings)
        if opened.loose_files:
            return LooseFileLoader(shard_set=opened.joined, files=opened.loose_files, **settings)
        if self.experiment.loader == "webdataset":
            (shard_set,) = opened.joined.sets  # an order as stored has one shard set
            from tta_pipeline.loading.front_to_back import FrontToBackLoader  # imports webdataset

            return FrontToBackLoader(shard_set=shard_set, **settings)
        return self.stream(opened, order)

    def stream(self, opened: OpenStream, order: StreamOrder) -> Stream:
        """Return the samples of *order* by the loader `indexed`."""
        open_pixels = partial(JoinedPixels, open_pixels=self.open_pixels)
        return Stream(shard_set=opened.joined, open_pixels=open_pixels, **self._settings(order))

    def require_unchanged(self, opened: OpenStream, order: StreamOrder) -> None:
        """Check that loaders without a check of their own have read the bytes in the manifests.

        Call this after the pass, so that it does not count as the loader's time.

        Raises:
            ManifestError, StreamError: they have read other bytes.
        """
        if opened.loose_files:
            opened.loose_files.require_unchanged(order.indices)
        elif self.experiment.loader == "webdataset":
            for shard_set in opened.joined.sets:
                shard_set.require_intact()

    def _settings(self, order: StreamOrder) -> _Settings:
        return _Settings(
            order=order,
            batch_size=self.experiment.batch_size,
            image_size=self.image_size,
            num_threads=self.num_threads,
            pin_memory=pins_memory(self.device),
        )
