"""One pass of a method over a stream: predictions in stream order, and where the time of each batch went."""

import time
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal

import numpy.typing as npt
import torch

from tta_pipeline.errors import EvaluationError
from tta_pipeline.evaluation.accelerator import Clock, Mark, name_of
from tta_pipeline.evaluation.protocol_driver import ProtocolDriver
from tta_pipeline.evaluation.scores import Samples, in_host_memory, scored_samples
from tta_pipeline.streaming.batch_loader import BatchLoader
from tta_pipeline.streaming.device import DeviceBatch, as_floats, on_device
from tta_pipeline.streaming.reader import Stream

Precision = Literal["fp32", "bf16", "fp16"]
_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
_MAX_AHEAD = 2
"""Number of batches that the host may be ahead of the device: enough to keep it busy, with bounded memory."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchTiming:
    """Where the time of one batch went."""

    num_samples: int
    data_wait_s: float
    """Seconds until the stream delivered the batch."""
    host_to_device_s: float
    """Seconds of the copy to the device; on CUDA it overlaps computation on the batch before; 0 on a CPU."""
    compute_s: float
    """Seconds of forward pass and adaptation."""


@dataclass(frozen=True, kw_only=True)
class Pass:
    """Everything collected over one pass, in stream order."""

    samples: Samples[npt.NDArray[Any]]
    batches: tuple[BatchTiming, ...]
    wall_s: float
    """Seconds from the request of the first batch until the device finished the last."""


def run_pass(
    driver: ProtocolDriver,
    stream: Stream | BatchLoader,
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
    recorder = _Recorder(Clock(device))
    started = asked = time.perf_counter()
    try:
        for batch in on_device(stream, device):
            data_wait_s = time.perf_counter() - asked
            recorder.record(batch, data_wait_s, lambda images: _log_probabilities(driver, images, stream, precision))
            advance(len(batch.indices))
            asked = time.perf_counter()
    except torch.OutOfMemoryError as error:
        raise EvaluationError(
            f"{name_of(device)} is out of memory at batches of {stream.batch_size} ({error}); "
            "expected memory for one batch: lower batch_size, or set precision to bf16"
        ) from error
    return recorder.result(started)


def _log_probabilities(
    driver: ProtocolDriver, images: torch.Tensor, stream: Stream | BatchLoader, precision: Precision
) -> torch.Tensor:
    """Return the log-softmax of the method's logits, float32 (B, K), for *images* in pixels."""
    # Compiled code is for one shape; the last batch may have another.
    with _eager() if len(images) < stream.batch_size else nullcontext(), _autocast(images.device, precision):
        return driver.predict(as_floats(images)).float().log_softmax(1)


def _eager() -> AbstractContextManager[None]:
    stance: AbstractContextManager[None] = torch.compiler.set_stance("force_eager")
    return stance


def _autocast(device: torch.device, precision: Precision) -> AbstractContextManager[None]:
    return nullcontext() if precision == "fp32" else torch.autocast(device.type, _DTYPES[precision])


class _Recorder:
    """Keeps the results of a pass on the device, since fetching them would make the device wait for the host."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._samples: list[Samples[torch.Tensor]] = []
        self._batches: list[DeviceBatch] = []
        self._waits_s: list[float] = []
        self._marks: list[tuple[Mark, Mark]] = []
        self._running: deque[Mark] = deque()

    def record(self, batch: DeviceBatch, data_wait_s: float, predict: Callable[[torch.Tensor], torch.Tensor]) -> None:
        begin = self._clock.mark()
        log_probabilities = predict(batch.images)
        end = self._clock.mark()
        self._samples.append(scored_samples(log_probabilities, batch.labels, torch.tensor(batch.indices)))
        self._batches.append(batch._replace(images=batch.images[:0]))  # drop the pixels, whose memory is reused
        self._waits_s.append(data_wait_s)
        self._marks.append((begin, end))
        self._running.append(end)
        if len(self._running) > _MAX_AHEAD:
            self._clock.wait_for(self._running.popleft())

    def result(self, started: float) -> Pass:
        samples = in_host_memory(self._samples)
        self._clock.synchronize()
        wall_s = time.perf_counter() - started
        return Pass(samples=samples, batches=tuple(self._timings()), wall_s=wall_s)

    def _timings(self) -> list[BatchTiming]:
        return [
            BatchTiming(
                num_samples=len(batch.indices),
                data_wait_s=data_wait_s,
                host_to_device_s=self._clock.seconds(*batch.copied) if batch.copied else 0.0,
                compute_s=self._clock.seconds(*marks),
            )
            for batch, data_wait_s, marks in zip(self._batches, self._waits_s, self._marks, strict=True)
        ]
