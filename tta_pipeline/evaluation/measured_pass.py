"""A pass over samples with the counters of its method, and the circumstances in which it was measured."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from tta_pipeline.benchmarks.protocols.driver import ProtocolDriver
from tta_pipeline.evaluation.device.arithmetic import Precision
from tta_pipeline.evaluation.device.memory import reset_peak_memory
from tta_pipeline.evaluation.feature_cache import FeatureLoader
from tta_pipeline.evaluation.one_pass import Pass, run_pass
from tta_pipeline.evaluation.open_stream import OpenStream
from tta_pipeline.evaluation.scores import concatenate_scores
from tta_pipeline.loading.reader import Stream


@dataclass(frozen=True, kw_only=True)
class MeasuredPass:
    """One pass with the method's counters."""

    collected: Pass
    counters: Mapping[str, int]


def merge_parts(parts: Sequence[MeasuredPass]) -> MeasuredPass:
    """Merge consecutive *parts* of a stream into one pass."""
    if len(parts) == 1:
        return parts[0]
    passes = [part.collected for part in parts]
    return MeasuredPass(
        collected=Pass(
            samples=concatenate_scores([each.samples for each in passes]),
            class_gaps=np.sum([each.class_gaps for each in passes], axis=0),
            batches=tuple(batch for each in passes for batch in each.batches),
            wall_s=sum(each.wall_s for each in passes),
        ),
        counters={name: sum(part.counters[name] for part in parts) for name in parts[0].counters},
    )


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """An evaluated stream: the pass over its samples, and the circumstances of the pass."""

    opened: OpenStream
    measured: MeasuredPass
    device: torch.device
    """The device that computed."""
    from_features: bool
    """Whether stored features were read instead of images."""
    frozen_layers: str | None
    """Description of the norm layers that the method left as they were; see `describe_frozen_layers`."""
    num_adapted_parameters: int | None
    """Number of parameters that gradient steps change; see `count_adapted_parameters`."""
    pipeline_setup_s: float
    """Seconds that the construction of the stream took."""
    other_load: float | None
    """Cores that other processes kept busy during the pass; None if the system does not report it."""
    known_threshold: float | None = None
    """Score at or above which an image counts as known; None without unknown images, or clean images to find it."""


def measure_pass(
    driver: ProtocolDriver,
    stream: Stream | FeatureLoader,
    *,
    device: torch.device,
    precision: Precision,
    advance: Callable[[int], None],
) -> MeasuredPass:
    """Run the pass and count the method's forwards, backwards, updates and resets.

    Raises:
        StreamError: a sample cannot be read or decoded.
        EvaluationError: the device is out of memory.
    """
    before = _counters(driver)
    reset_peak_memory(device)
    collected = run_pass(driver, stream, device=device, precision=precision, advance=advance)
    counters = {name: count - before[name] for name, count in _counters(driver).items()}
    return MeasuredPass(collected=collected, counters=counters)


def _counters(driver: ProtocolDriver) -> dict[str, int]:
    names = (
        "num_forwards", "num_backwards", "num_adapted_samples", "num_updates", "num_resets", "num_nonfinite_batches",
    )  # fmt: skip
    return {**{name: getattr(driver.method, name) for name in names}, "num_unadapted": driver.num_unadapted}
