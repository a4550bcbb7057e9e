"""The pass over one segment of a stream: every sample once, in parts that a killed run need not repeat."""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial

import torch

from tta_pipeline.benchmarks.protocols.driver import ProtocolDriver
from tta_pipeline.evaluation.build_records import require_every_sample_once
from tta_pipeline.evaluation.device.arithmetic import Precision
from tta_pipeline.evaluation.feature_cache import FeatureCacheEntry, FeatureLoader
from tta_pipeline.evaluation.feature_sharing import sharing_features
from tta_pipeline.evaluation.machine import OtherLoad
from tta_pipeline.evaluation.measured_pass import MeasuredPass, Measurement, measure_pass, merge_parts
from tta_pipeline.evaluation.open_stream import OpenStream
from tta_pipeline.evaluation.timing import timed
from tta_pipeline.evaluation.what_adapts import count_adapted_parameters, describe_frozen_layers
from tta_pipeline.loading.device import pins_memory
from tta_pipeline.loading.joined_sets import JoinedPixels
from tta_pipeline.loading.reader import Stream
from tta_pipeline.loading.stored_pixels import Pixels, StoredPixels
from tta_pipeline.loading.stream_order import StreamOrder
from tta_pipeline.shards.shard_set import ShardSet


@dataclass(frozen=True, kw_only=True)
class SampleLoaders:
    """Makes the loaders of an experiment."""

    batch_size: int
    image_size: int
    device: torch.device
    num_threads: int
    open_pixels: Callable[[ShardSet, int], Pixels] = StoredPixels

    def make(
        self, opened: OpenStream, whole: StreamOrder, part: slice, features: torch.Tensor | None
    ) -> Stream | FeatureLoader:
        """Return the samples of *part* of the order *whole*, or their *features* instead of images."""
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


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """Schedule on which the evaluation of a segment saves its state."""

    every: int
    """Number of samples between two checkpoints; rounded up to whole batches, so that it changes no prediction."""
    save: Callable[[int, MeasuredPass], None]
    """Called with the number of finished parts and the last of these parts."""


def evaluate_segment(
    driver: ProtocolDriver,
    opened: OpenStream,
    loaders: SampleLoaders,
    *,
    precision: Precision,
    advance: Callable[[int], None],
    kept: FeatureCacheEntry | None = None,
    done: Sequence[MeasuredPass] = (),
    checkpoint: Checkpoint | None = None,
    known_threshold: Callable[[], float | None] = lambda: None,
) -> Measurement:
    """Let *driver* predict every sample of *opened* once, from its current state, and return the measurements.

    Args:
        driver: The method under its protocol.
        opened: The samples.
        loaders: How they are read.
        precision: Precision of the forward passes; the caller sets the arithmetic.
        advance: Called with the size of each batch.
        kept: Features of the images, to read or to store; None: images are read.
        done: Parts of the segment that were evaluated before an interruption; only the rest is evaluated now.
        checkpoint: When and how to save finished parts; None: the segment is one part.
        known_threshold: Finds the threshold between known and unknown images, if there are unknown ones.

    Raises:
        StreamError: a sample cannot be read or decoded.
        EvaluationError: not every sample was seen exactly once, or the device is out of memory.
    """
    load = OtherLoad()
    with timed() as setup:
        features = kept.read() if kept else None
        num_done = sum(len(part.collected.samples.indices) for part in done)
        parts = _part_slices(opened.order, num_done, loaders.batch_size, checkpoint)
        stream = loaders.make(opened, opened.order, parts[0], features)
    if num_done:
        advance(num_done)
    threshold = known_threshold() if opened.unknown_manifests else None
    measured = list(done)
    # Features that an earlier process captured are lost, so a resumed pass cannot capture all of them.
    captures = None if done and features is None else kept
    with sharing_features(driver.method, captures, features) if kept else nullcontext():
        for part in parts:
            if part is not parts[0] and checkpoint:
                checkpoint.save(len(measured), measured[-1])
                stream = loaders.make(opened, opened.order, part, features)
            measured.append(measure_pass(driver, stream, device=loaders.device, precision=precision, advance=advance))
    whole = merge_parts(measured)
    require_every_sample_once(whole.collected.samples.indices, opened)
    return Measurement(
        opened=opened,
        measured=whole,
        device=loaders.device,
        from_features=features is not None,
        frozen_layers=describe_frozen_layers(driver.method),
        num_adapted_parameters=count_adapted_parameters(driver.method),
        pipeline_setup_s=setup.wall_s,
        other_load=load.measure(),
        known_threshold=threshold,
    )


def _part_slices(order: StreamOrder, num_done: int, batch_size: int, checkpoint: Checkpoint | None) -> list[slice]:
    """Return the parts of *order* that follow its first *num_done* samples, each made of whole batches."""
    step = len(order) if checkpoint is None else -(-checkpoint.every // batch_size) * batch_size
    return [slice(start, min(start + step, len(order))) for start in range(num_done, len(order), step)]
