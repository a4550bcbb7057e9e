"""Drivers that feed batches to a method: continually, episodically, in windows, or for a limited time."""

import math
import statistics
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import ClassVar

import torch
from torch import nn

from tta_pipeline.benchmarks.protocol import Protocol
from tta_pipeline.methods.method import Method
from tta_pipeline.methods.optional_scores import HasConfidence, HasSourceLogits
from tta_pipeline.methods.stateful import StateDict

_NUM_WARM_UPS, _NUM_TIMED = 2, 5


@contextmanager
def eager_unless(is_whole: bool) -> Iterator[None]:  # noqa: FBT001 - reads as a condition
    """Run the block without compilation or compiled code unless the batch has the compiled size."""
    if is_whole:
        yield
        return
    with torch.compiler.set_stance("force_eager"):
        yield


class ProtocolDriver:
    """Driver that adapts on every batch, in stream order."""

    gives_whole_batches: ClassVar[bool] = True
    """Whether the method gets every batch of the stream unchanged, however long it takes."""
    keeps_probabilities: bool = False
    """Whether the probabilities of all classes are kept for each sample."""

    def __init__(self, method: Method) -> None:
        self.method = method
        self.num_unadapted = 0
        """Number of samples predicted without adaptation for lack of time."""

    def predict(self, images: torch.Tensor) -> torch.Tensor:
        """Return logits (B, K) for *images*, float (B, 3, H, W) in [0, 1]."""
        return self.method.predict(images)

    def confidence(self, logits: torch.Tensor) -> torch.Tensor | None:
        """Return the method's score, (B,), that images with *logits* (B, K) are known; None: the maximum softmax."""
        return self.method.confidence(logits) if isinstance(self.method, HasConfidence) else None

    def source_logits(self) -> torch.Tensor | None:
        """Return the source model's logits (B, K) for the images of the last prediction, if the method has them."""
        method = self.method
        return method.source_logits() if self.gives_whole_batches and isinstance(method, HasSourceLogits) else None

    def view_predictions(self) -> torch.Tensor | None:
        """Return the labels predicted for second views of the last images, int64 (B,); None: nobody asked."""
        return None

    def state_dict(self) -> StateDict:
        """Return a copy of the state that determines the next predictions."""
        return {"method": self.method.state_dict()}

    def load_state_dict(self, state: StateDict) -> None:
        """Restore *state* from `state_dict`."""
        self.method.load_state_dict(state["method"])


class EpisodicDriver(ProtocolDriver):
    """Driver that starts each batch from the source model (MEMO: Zhang et al. 2022, section 3)."""

    def predict(self, images: torch.Tensor) -> torch.Tensor:
        """Return logits (B, K)."""
        self.method.reset()
        return self.method.predict(images)


class AfterUpdateDriver(ProtocolDriver):
    """Driver that lets another one adapt on each batch, and then predicts the batch by the network as it is now."""

    def __init__(self, adapting: ProtocolDriver) -> None:
        super().__init__(adapting.method)
        self._adapting = adapting

    def predict(self, images: torch.Tensor) -> torch.Tensor:
        """Return logits (B, K)."""
        self._adapting.predict(images)
        return self.method.predict_unadapted(images)


class WindowDriver(ProtocolDriver):
    """Driver that predicts one image at a time within a batch of the newest images, for methods that need a batch.

    Like the option `window_length` in the benchmark of Marsden et al. 2024 ("Universal test-time adaptation").
    """

    gives_whole_batches = False

    def __init__(self, method: Method, *, size: int) -> None:
        super().__init__(method)
        self._size = size
        self._newest: torch.Tensor | None = None

    def predict(self, images: torch.Tensor) -> torch.Tensor:
        """Return logits (1, K) for the one image in *images*."""
        with_older = images if self._newest is None else torch.cat([self._newest, images])
        self._newest = with_older[-self._size :].clone()
        with eager_unless(len(self._newest) == self._size):  # compiled code is for a full window
            return self.method.predict(self._newest)[-len(images) :]

    def state_dict(self) -> StateDict:
        """Return a copy of the state that determines the next predictions, including the window."""
        return {**super().state_dict(), "newest": self._newest}

    def load_state_dict(self, state: StateDict) -> None:
        """Restore *state* from `state_dict`."""
        super().load_state_dict(state)
        newest: torch.Tensor | None = state["newest"]
        self._newest = None if newest is None else newest.to(self.method.device)


class TimedDriver(ProtocolDriver, ABC):
    """Driver that measures the method against the source model, and adapts only while there is time.

    Latencies are measured, so results depend on the machine. Batches without adaptation are predicted by the network as
    adapted so far (`Method.predict_unadapted`). The time to measure the pace of the source model is not counted.
    """

    gives_whole_batches = False

    def __init__(self, method: Method, *, source: nn.Module, synchronize: Callable[[], None]) -> None:
        super().__init__(method)
        self._source = source.eval()
        self._synchronize = synchronize
        self._source_s: float | None = None

    @abstractmethod
    def _may_adapt(self) -> bool:
        """Return whether there is time to adapt on the next batch."""

    @abstractmethod
    def _spend(self, taken_s: float, source_s: float) -> None:
        """Account for a batch: the method took *taken_s*, and the source model would take *source_s*."""

    def predict(self, images: torch.Tensor) -> torch.Tensor:
        """Return logits (B, K)."""
        if self._source_s is None:
            self._source_s = self._measure_source_s(images)
        if not self._may_adapt():
            self.num_unadapted += len(images)
            return self.method.predict_unadapted(images)
        self._synchronize()
        started = time.perf_counter()
        logits = self.method.predict(images)
        self._synchronize()
        self._spend(time.perf_counter() - started, self._source_s)
        return logits

    def state_dict(self) -> StateDict:
        """Return a copy of the state that determines the next predictions, including the pace."""
        return {**super().state_dict(), "source_s": self._source_s}

    def load_state_dict(self, state: StateDict) -> None:
        """Restore *state* from `state_dict`."""
        super().load_state_dict(state)
        self._source_s = state["source_s"]

    def _measure_source_s(self, images: torch.Tensor) -> float:
        """Return the source model's time for a batch: the median of a few runs, in seconds."""
        times_s = []
        for _ in range(_NUM_WARM_UPS + _NUM_TIMED):
            self._synchronize()
            started = time.perf_counter()
            with torch.inference_mode():
                self._source(images)
            self._synchronize()
            times_s.append(time.perf_counter() - started)
        return statistics.median(times_s[_NUM_WARM_UPS:])


class RealTimeDriver(TimedDriver):
    """Driver of a stream that does not wait for the method.

    Alfarra et al. 2024, "Evaluation of test-time adaptation under computational time constraints", section 3. The
    source model sets the pace: at speed 1, a new batch arrives as soon as the source model could have predicted the
    previous one. The network predicts a batch that arrives during adaptation without adapting to it.
    """

    def __init__(self, method: Method, *, speed: float, source: nn.Module, synchronize: Callable[[], None]) -> None:
        super().__init__(method, source=source, synchronize=synchronize)
        self._speed = speed
        self._num_missed = 0

    def _may_adapt(self) -> bool:
        if not self._num_missed:
            return True
        self._num_missed -= 1
        return False

    def _spend(self, taken_s: float, source_s: float) -> None:
        self._num_missed = max(0, math.ceil(self._speed * taken_s / source_s) - 1)

    def state_dict(self) -> StateDict:
        """Return a copy of the state that determines the next predictions, including pace and missed batches."""
        return {**super().state_dict(), "num_missed": self._num_missed}

    def load_state_dict(self, state: StateDict) -> None:
        """Restore *state* from `state_dict`."""
        super().load_state_dict(state)
        self._num_missed = state["num_missed"]


class BudgetDriver(TimedDriver):
    """Driver that lets the method adapt until its extra time over the source model has used up a budget.

    The amortised utility of Sreeram et al. 2026, "Tempora: characterising the time-contingent utility of online
    test-time adaptation". Afterwards the network stays frozen.
    """

    def __init__(self, method: Method, *, budget_s: float, source: nn.Module, synchronize: Callable[[], None]) -> None:
        super().__init__(method, source=source, synchronize=synchronize)
        self._budget_s = budget_s
        self._spent_s = 0.0

    def _may_adapt(self) -> bool:
        return self._spent_s < self._budget_s

    def _spend(self, taken_s: float, source_s: float) -> None:
        self._spent_s += max(0.0, taken_s - source_s)

    def state_dict(self) -> StateDict:
        """Return a copy of the state that determines the next predictions, including the time spent."""
        return {**super().state_dict(), "spent_s": self._spent_s}

    def load_state_dict(self, state: StateDict) -> None:
        """Restore *state* from `state_dict`."""
        super().load_state_dict(state)
        self._spent_s = state["spent_s"]


def make_driver(
    protocol: Protocol, method: Method, *, make_source: Callable[[], nn.Module], synchronize: Callable[[], None]
) -> ProtocolDriver:
    """Return the driver that feeds batches to *method* according to *protocol*."""
    if protocol.stream_speed is not None:
        return RealTimeDriver(method, speed=protocol.stream_speed, source=make_source(), synchronize=synchronize)
    if protocol.adaptation_budget_s is not None:
        budget_s = protocol.adaptation_budget_s
        return BudgetDriver(method, budget_s=budget_s, source=make_source(), synchronize=synchronize)
    if protocol.predict_after_update:
        return AfterUpdateDriver(EpisodicDriver(method) if protocol.shift == "episodic" else ProtocolDriver(method))
    if protocol.shift == "episodic":
        return EpisodicDriver(method)
    return WindowDriver(method, size=protocol.window) if protocol.window > 1 else ProtocolDriver(method)
