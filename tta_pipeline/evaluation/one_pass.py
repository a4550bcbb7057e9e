"""One pass of a method over a stream: predictions in stream order, and a breakdown of each batch's time."""

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from tta_pipeline.benchmarks.protocols.driver import ProtocolDriver, eager_unless
from tta_pipeline.domain.ordering import Indices
from tta_pipeline.evaluation.calibration import ClassGaps
from tta_pipeline.evaluation.device.arithmetic import Precision
from tta_pipeline.evaluation.device.clock import Clock, Mark
from tta_pipeline.evaluation.device.memory import find_fitting_batch_size, out_of_memory_error
from tta_pipeline.evaluation.feature_cache import FeatureLoader
from tta_pipeline.evaluation.scores import SampleScores, fetch_scores, score_samples
from tta_pipeline.loading.device import DeviceBatch, Event, as_floats, move_to_device
from tta_pipeline.loading.reader import Stream
from tta_pipeline.methods.own_methods import naming_own_code, require_logits

_AUTOCAST_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
_MAX_AHEAD = 2
"""Number of batches that the host may be ahead of the device: enough to keep it busy, with bounded memory."""
SCORED_TOGETHER = 2**19
"""Number of probabilities from which on batches are scored: one by one, scores would be a tenth of the operators that
Tent submits to the device for 64 images."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchTiming:
    """Breakdown of the time of one batch."""

    num_samples: int
    data_wait_s: float
    """Seconds until the stream delivered the batch; the device may compute meanwhile."""
    device_idle_s: float
    """Seconds that the device was idle between the previous batch and this one; for the first batch, `data_wait_s`."""
    host_to_device_s: float
    """Seconds of the copy to the device if it overlaps computation on the previous batch; otherwise 0."""
    compute_s: float
    """Seconds of forward pass and adaptation."""
    num_unadapted: int
    """Number of samples that were predicted without adaptation."""
    num_resets: int
    """Number of times that the method reset itself at this batch, before its prediction or after its step."""


@dataclass(frozen=True, kw_only=True)
class Pass:
    """Everything collected over one pass, in stream order."""

    samples: SampleScores[npt.NDArray[Any]]
    class_gaps: npt.NDArray[np.float64]
    """The sums of `ClassGaps`, shape (C, K, 15)."""
    batches: tuple[BatchTiming, ...]
    wall_s: float
    """Seconds from the request of the first batch until the device finished the last."""


def run_pass(
    driver: ProtocolDriver,
    stream: Stream | FeatureLoader,
    *,
    device: torch.device,
    precision: Precision,
    advance: Callable[[int], None],
) -> Pass:
    """Predict every sample of *stream*; call *advance* with each batch's size.

    Raises:
        StreamError: a sample cannot be read or decoded.
        EvaluationError: the device is out of memory.
    """
    recorder = _Recorder(Clock(device), ClassGaps(stream.shard_set), keeps_probabilities=driver.keeps_probabilities)
    started = time.perf_counter()
    for batch in move_to_device(stream, device):
        try:
            recorder.record(batch, driver, lambda images: _predict(driver, images, stream, precision))
        except torch.OutOfMemoryError as error:
            recorder.free_samples()
            raise out_of_memory_error(
                error,
                device,
                batch_size=len(batch.images),
                fitting=_batch_size_finder(driver, batch.images, stream, precision),
            ) from None
        advance(len(batch.indices))
    return recorder.result(started)


def _batch_size_finder(
    driver: ProtocolDriver, images: torch.Tensor, stream: Stream | FeatureLoader, precision: Precision
) -> Callable[[], int]:
    """Return a function that finds a batch size that fits in memory, by trying smaller batches of *images*."""

    def attempt(size: int) -> None:
        driver.method.reset()
        _predict(driver, images[:size], stream, precision)

    return lambda: find_fitting_batch_size(attempt, too_large=len(images), device=images.device)


class _Prediction(NamedTuple):
    """A method's outputs for one batch."""

    log_probabilities: torch.Tensor
    """Log-softmax of the classes' logits, float32 (B, K)."""
    source_logits: torch.Tensor | None
    """The source model's logits of the classes, (B, K), if the method computes them."""
    known_scores: torch.Tensor | None
    """The method's score that each image is known, (B,); None: the maximum softmax."""
    view_predictions: torch.Tensor | None
    """Labels predicted for second views of the images, int64 (B,); None without probes."""


def _predict(
    driver: ProtocolDriver, images: torch.Tensor, stream: Stream | FeatureLoader, precision: Precision
) -> _Prediction:
    """Return the prediction for *images* in pixels, or for features."""
    # Code is compiled for one shape, from which the last batch may differ.
    with eager_unless(len(images) == stream.batch_size), autocast(images.device, precision):
        inputs = images if images.is_floating_point() else as_floats(images)
        method = driver.method
        with naming_own_code(method.name, type(method), "_predict", expected="logits (B, K)"):
            logits = driver.predict(inputs)
        require_logits(logits, method, num_images=len(inputs))
        logits = logits.float()
        of_source, of_views = (
            None if each is None else driver.class_logits(each)
            for each in (driver.source_logits(), driver.view_logits())
        )
        return _Prediction(
            log_probabilities=driver.class_logits(logits).log_softmax(1),
            source_logits=of_source,
            known_scores=driver.confidence(logits),
            view_predictions=None if of_views is None else of_views.argmax(1),
        )


def autocast(device: torch.device, precision: Precision) -> AbstractContextManager[None]:
    """Return the context of forward passes in *precision*."""
    if precision not in _AUTOCAST_DTYPES:
        return nullcontext()
    # With its cache, autocast would predict after a step with casts of the weights from before the step.
    return torch.autocast(device.type, _AUTOCAST_DTYPES[precision], cache_enabled=False)


class _Unscored(NamedTuple):
    """A predicted batch."""

    predicted: _Prediction
    labels: torch.Tensor
    indices: Indices


class _BatchMarks(NamedTuple):
    """Timing marks of one computed batch; its pixels are not kept, since their memory is reused."""

    num_samples: int
    data_wait_s: float
    copied: tuple[Event, Event] | None
    begin: Mark
    end: Mark
    scored: Mark
    num_unadapted: int
    num_resets: int


class _Recorder:
    """Recorder of a pass; results stay on the device, since fetching them would make it wait for the host."""

    def __init__(self, clock: Clock, class_gaps: ClassGaps, *, keeps_probabilities: bool) -> None:
        self._clock = clock
        self._class_gaps = class_gaps
        self._keeps_probabilities = keeps_probabilities
        self._unscored: list[_Unscored] = []
        self._num_unscored = 0  # probabilities
        self._samples: list[SampleScores[torch.Tensor]] = []
        self._batches: list[_BatchMarks] = []
        self._running: deque[Mark] = deque()

    def record(
        self, batch: DeviceBatch, driver: ProtocolDriver, predict: Callable[[torch.Tensor], _Prediction]
    ) -> None:
        num_unadapted, num_resets = driver.num_unadapted, driver.method.num_resets
        begin = self._clock.mark()
        predicted = predict(batch.images)
        end = self._clock.mark()
        self._unscored.append(_Unscored(predicted, batch.labels, batch.indices))
        self._num_unscored += predicted.log_probabilities.numel()
        if self._num_unscored >= SCORED_TOGETHER:
            self._score()
        scored = self._clock.mark()
        self._batches.append(
            _BatchMarks(
                len(batch.indices), batch.data_wait_s, batch.copied, begin, end, scored,
                num_unadapted=driver.num_unadapted - num_unadapted, num_resets=driver.method.num_resets - num_resets,
            )
        )  # fmt: skip
        self._running.append(scored)
        if len(self._running) > _MAX_AHEAD:
            self._clock.wait_for(self._running.popleft())

    def _score(self) -> None:
        """Score the predicted batches that are not scored yet."""
        batches, self._unscored, self._num_unscored = self._unscored, [], 0
        predicted = [each.predicted for each in batches]
        log_probabilities = torch.cat([each.log_probabilities for each in predicted])
        labels = torch.cat([each.labels for each in batches])
        indices = np.concatenate([each.indices for each in batches])
        self._samples.append(
            score_samples(
                log_probabilities, labels, torch.from_numpy(indices),
                source_logits=_join([each.source_logits for each in predicted]),
                known_scores=_join([each.known_scores for each in predicted]),
                view_predictions=_join([each.view_predictions for each in predicted]),
                keeps_probabilities=self._keeps_probabilities,
            )
        )  # fmt: skip
        self._class_gaps.add(log_probabilities, labels, indices)

    def free_samples(self) -> None:
        """Free the memory of the results."""
        self._unscored.clear()
        self._samples.clear()

    def result(self, started: float) -> Pass:
        if self._unscored:
            self._score()
        samples = fetch_scores(self._samples)
        self._clock.synchronize()
        wall_s = time.perf_counter() - started
        return Pass(
            samples=samples, class_gaps=self._class_gaps.fetch(), batches=tuple(self._timings()), wall_s=wall_s
        )  # fmt: skip

    def _timings(self) -> Iterator[BatchTiming]:
        before: Mark | None = None
        for each in self._batches:
            yield BatchTiming(
                num_samples=each.num_samples,
                data_wait_s=each.data_wait_s,
                device_idle_s=each.data_wait_s if before is None else max(0.0, self._clock.seconds(before, each.begin)),
                host_to_device_s=self._clock.seconds(*each.copied) if each.copied else 0.0,
                compute_s=self._clock.seconds(each.begin, each.end),
                num_unadapted=each.num_unadapted,
                num_resets=each.num_resets,
            )
            before = each.scored


def _join(parts: Sequence[torch.Tensor | None]) -> torch.Tensor | None:
    """Return the concatenated *parts*; None if the method does not compute them."""
    found = [part for part in parts if part is not None]
    return torch.cat(found) if found else None
