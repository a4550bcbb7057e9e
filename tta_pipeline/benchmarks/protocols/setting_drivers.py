"""Drivers that a setting selects: in windows, on a part of the stream, for a limited time, or after the update."""

import math
import statistics
import time
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar

from pydantic import Field, model_validator

from tta_pipeline.benchmarks.protocols.driver import ProtocolDriver, SettingDriver, SourceModel, eager_unless
from tta_pipeline.util.config_model import MAX_COUNT, ConfigModel

if TYPE_CHECKING:
    import torch

    from tta_pipeline.methods.stateful import StateDict

_NUM_WARM_UPS, _NUM_TIMED = 2, 5


class AfterUpdateDriver(SettingDriver):
    """Driver that lets another driver adapt on each batch, and then predicts the batch with the adapted network."""

    lets_others_drive: ClassVar[bool] = True

    def predict(self, images: "torch.Tensor") -> "torch.Tensor":
        """Return logits (B, K)."""
        self._usual.predict(images)
        return self.method.predict_unadapted(images)


class WindowDriver(SettingDriver):
    """Driver that predicts one image at a time within a batch of the newest images, for methods that need a batch.

    Like the option `window_length` in the benchmark of Marsden et al. 2024 ("Universal test-time adaptation").
    """

    gives_whole_batches = False

    def __init__(self, usual: ProtocolDriver, value: int, source: SourceModel) -> None:
        super().__init__(usual, value, source)
        self._size = value
        self._newest: torch.Tensor | None = None

    def predict(self, images: "torch.Tensor") -> "torch.Tensor":
        """Return logits (1, K) for the one image in *images*."""
        import torch

        with_older = images if self._newest is None else torch.cat([self._newest, images])
        self._newest = with_older[-self._size :].clone()
        with eager_unless(len(self._newest) == self._size):  # compiled code is for a full window
            return self.method.predict(self._newest)[-len(images) :]

    def state_dict(self) -> "StateDict":
        """Return a copy of the state that determines the next predictions, including the window."""
        return {**super().state_dict(), "newest": self._newest}

    def load_state_dict(self, state: "StateDict") -> None:
        """Restore *state* from `state_dict`."""
        super().load_state_dict(state)
        newest: torch.Tensor | None = state["newest"]
        self._newest = None if newest is None else newest.to(self.method.device)


class Adapt(ConfigModel):
    """Part of a stream on which the method adapts, in whole batches; the model as adapted so far predicts the rest.

    Counts begin with the stream, so after each reset of the protocol; a method that resets itself does not restart
    them.
    """

    first: int | None = Field(default=None, ge=1, le=MAX_COUNT)
    """Number of samples at the start of the stream, a multiple of the batch size; then the model is frozen (Murphy et
    al. 2026, "NEO: No-optimization test-time adaptation through latent re-centering", with 64 and 512 samples)."""
    every: int | None = Field(default=None, ge=1, le=MAX_COUNT)
    """Every k-th batch, beginning with the first (Danilowski et al. 2026, "BoTTA: benchmarking on-device test-time
    adaptation", advocate periodic adaptation)."""
    share: float | None = Field(default=None, ge=1e-4, le=1)
    """Share of the samples, 0.0001 to 1, in batches spread evenly over the stream, beginning with the first (Cha et al.
    2025, "SNAP: low-latency test-time adaptation with sparse updates", with 0.01 to 0.5)."""

    @model_validator(mode="after")
    def _one_of_three(self) -> "Adapt":
        self.require_one("part", of=("first", "every", "share"))
        return self

    @property
    def name(self) -> str:
        """Name of the part in the protocol's name, such as `first_512` or `share_0_1`."""
        ((setting, value),) = self.model_dump(exclude_none=True).items()
        return f"{setting}_{value:g}".replace(".", "_") if setting == "share" else f"{setting}_{value}"


class PartDriver(SettingDriver):
    """Driver that adapts on a part of the stream, in whole batches; the model as adapted so far predicts the rest."""

    gives_whole_batches = False

    def __init__(self, usual: ProtocolDriver, value: Adapt, source: SourceModel) -> None:
        super().__init__(usual, value, source)
        self._part = value
        self._num_batches = 0
        self._num_samples = 0
        self._num_adapted = 0

    def predict(self, images: "torch.Tensor") -> "torch.Tensor":
        """Return logits (B, K)."""
        adapts = self._is_in_part(len(images))
        self._num_batches += 1
        self._num_samples += len(images)
        if adapts:
            self._num_adapted += len(images)
            return self.method.predict(images)
        self.num_unadapted += len(images)
        return self.method.predict_unadapted(images)

    def _is_in_part(self, num_samples: int) -> bool:
        """Return whether the next batch, of *num_samples*, is one to adapt on."""
        part = self._part
        if part.first is not None:
            return self._num_samples + num_samples <= part.first
        if part.every is not None:
            return self._num_batches % part.every == 0
        return part.share is not None and self._num_adapted <= part.share * self._num_samples

    def state_dict(self) -> "StateDict":
        """Return a copy of the state that determines the next predictions, including the place in the stream."""
        place = (self._num_batches, self._num_samples, self._num_adapted)
        return {**super().state_dict(), "place": place}

    def load_state_dict(self, state: "StateDict") -> None:
        """Restore *state* from `state_dict`."""
        super().load_state_dict(state)
        self._num_batches, self._num_samples, self._num_adapted = state["place"]


class TimedDriver(SettingDriver, ABC):
    """Driver that measures the method against the source model, and adapts only while there is time.

    Latencies are measured, so results depend on the machine. Batches without adaptation are predicted by the network as
    adapted so far (`Method.predict_unadapted`). The time to measure the pace of the source model is not counted.
    """

    gives_whole_batches = False

    def __init__(self, usual: ProtocolDriver, value: float, source: SourceModel) -> None:
        super().__init__(usual, value, source)
        self._source = source.make().eval()
        self._synchronize = source.synchronize
        self._source_s: float | None = None

    @abstractmethod
    def _may_adapt(self) -> bool:
        """Return whether there is time to adapt on the next batch."""

    @abstractmethod
    def _spend(self, taken_s: float, source_s: float) -> None:
        """Account for a batch: the method took *taken_s*, and the source model would take *source_s*."""

    def predict(self, images: "torch.Tensor") -> "torch.Tensor":
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

    def state_dict(self) -> "StateDict":
        """Return a copy of the state that determines the next predictions, including the pace."""
        return {**super().state_dict(), "source_s": self._source_s}

    def load_state_dict(self, state: "StateDict") -> None:
        """Restore *state* from `state_dict`."""
        super().load_state_dict(state)
        self._source_s = state["source_s"]

    def _measure_source_s(self, images: "torch.Tensor") -> float:
        """Return the source model's time for a batch: the median of a few runs, in seconds."""
        import torch

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

    def __init__(self, usual: ProtocolDriver, value: float, source: SourceModel) -> None:
        super().__init__(usual, value, source)
        self._speed = value
        self._num_missed = 0

    def _may_adapt(self) -> bool:
        if not self._num_missed:
            return True
        self._num_missed -= 1
        return False

    def _spend(self, taken_s: float, source_s: float) -> None:
        self._num_missed = max(0, math.ceil(self._speed * taken_s / source_s) - 1)

    def state_dict(self) -> "StateDict":
        """Return a copy of the state that determines the next predictions, including pace and missed batches."""
        return {**super().state_dict(), "num_missed": self._num_missed}

    def load_state_dict(self, state: "StateDict") -> None:
        """Restore *state* from `state_dict`."""
        super().load_state_dict(state)
        self._num_missed = state["num_missed"]


class BudgetDriver(TimedDriver):
    """Driver that lets the method adapt until its extra time over the source model has used up a budget.

    The amortised utility of Sreeram et al. 2026, "Tempora: characterising the time-contingent utility of online
    test-time adaptation". Afterwards the network stays frozen.
    """

    def __init__(self, usual: ProtocolDriver, value: float, source: SourceModel) -> None:
        super().__init__(usual, value, source)
        self._budget_s = value
        self._spent_s = 0.0

    def _may_adapt(self) -> bool:
        return self._spent_s < self._budget_s

    def _spend(self, taken_s: float, source_s: float) -> None:
        self._spent_s += max(0.0, taken_s - source_s)

    def state_dict(self) -> "StateDict":
        """Return a copy of the state that determines the next predictions, including the time spent."""
        return {**super().state_dict(), "spent_s": self._spent_s}

    def load_state_dict(self, state: "StateDict") -> None:
        """Restore *state* from `state_dict`."""
        super().load_state_dict(state)
        self._spent_s = state["spent_s"]
