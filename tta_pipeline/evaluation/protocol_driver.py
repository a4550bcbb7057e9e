"""How a protocol gives batches to a method: as they come, from the source model each, in windows, or in real time."""

import math
import statistics
import time
from collections.abc import Callable

import torch
from torch import nn

from tta_pipeline.adaptation.method import Method
from tta_pipeline.adaptation.snapshot import StateDict
from tta_pipeline.benchmarks.protocol import Protocol

_NUM_WARM_UPS, _NUM_TIMED = 2, 5


class ProtocolDriver:
    """Batches as they come, each adapted on."""

    def __init__(self, method: Method) -> None:
        self.method = method
        self.num_unadapted = 0
        """Samples predicted without adaptation, since the stream did not wait."""

    @property
    def is_stateless(self) -> bool:
        """Whether each batch is treated by itself, so that several processes can share a stream."""
        return self.method.is_stateless

    def predict(self, images: torch.Tensor) -> torch.Tensor:
        """Return logits (B, K) for *images*, float (B, 3, H, W) in [0, 1]."""
        return self.method.predict(images)

    def state_dict(self) -> StateDict:
        """Return a copy of what decides the next predictions."""
        return {"method": self.method.state_dict()}

    def load_state_dict(self, state: StateDict) -> None:
        """Go on where the driver was that gave *state*."""
        self.method.load_state_dict(state["method"])


class EpisodicDriver(ProtocolDriver):
    """Each batch from the source model on (MEMO: Zhang et al. 2022, section 3)."""

    @property
    def is_stateless(self) -> bool:
        """It is: the generator starts anew too."""
        return True

    def predict(self, images: torch.Tensor) -> torch.Tensor:
        """Return logits (B, K)."""
        self.method.reset()
        return self.method.predict(images)


class WindowDriver(ProtocolDriver):
    """Batches of the newest images, of which the last alone is predicted: for methods that need more than one image.

    As the option `window_length` of the benchmark of Marsden et al. 2024 ("Universal test-time adaptation").
    """

    def __init__(self, method: Method, *, size: int) -> None:
        super().__init__(method)
        self._size = size
        self._newest: torch.Tensor | None = None

    @property
    def is_stateless(self) -> bool:
        """It is not: windows overlap."""
        return False

    def predict(self, images: torch.Tensor) -> torch.Tensor:
        """Return logits (1, K) for the one image in *images*."""
        with_older = images if self._newest is None else torch.cat([self._newest, images])
        self._newest = with_older[-self._size :].clone()
        return self.method.predict(self._newest)[-len(images) :]

    def state_dict(self) -> StateDict:
        """Return a copy of what decides the next predictions, the window too."""
        return {**super().state_dict(), "newest": self._newest}

    def load_state_dict(self, state: StateDict) -> None:
        """Go on where the driver was that gave *state*."""
        super().load_state_dict(state)
        self._newest = state["newest"]


class RealTimeDriver(ProtocolDriver):
    """A stream that does not wait for the method.

    Alfarra et al. 2024, "Evaluation of test-time adaptation under computational time constraints", section 3. The
    source model defines the pace: at speed 1 a batch comes each time that it has predicted one. A batch that comes
    while the method adapts is predicted by the network as it is. Latencies are measured here, so results depend on the
    machine.
    """

    def __init__(self, method: Method, *, speed: float, source: nn.Module, synchronize: Callable[[], None]) -> None:
        super().__init__(method)
        self._speed = speed
        self._source = source.eval()
        self._synchronize = synchronize
        self._source_s: float | None = None
        self._num_missed = 0

    @property
    def is_stateless(self) -> bool:
        """It is not: what the method misses depends on how long it was busy."""
        return False

    def predict(self, images: torch.Tensor) -> torch.Tensor:
        """Return logits (B, K)."""
        if self._source_s is None:
            self._source_s = self._measured_s(images)
        if self._num_missed:
            self._num_missed -= 1
            self.num_unadapted += len(images)
            with torch.inference_mode():
                logits: torch.Tensor = self.method.model(images)
            return logits
        self._synchronize()
        started = time.perf_counter()
        logits = self.method.predict(images)
        self._synchronize()
        taken_s = time.perf_counter() - started
        self._num_missed = max(0, math.ceil(self._speed * taken_s / self._source_s) - 1)
        return logits

    def _measured_s(self, images: torch.Tensor) -> float:
        """Return how long the source model takes for a batch: the median of a few."""
        times_s = []
        for _ in range(_NUM_WARM_UPS + _NUM_TIMED):
            self._synchronize()
            started = time.perf_counter()
            with torch.inference_mode():
                self._source(images)
            self._synchronize()
            times_s.append(time.perf_counter() - started)
        return statistics.median(times_s[_NUM_WARM_UPS:])


def driver_of(
    protocol: Protocol, method: Method, *, make_source: Callable[[], nn.Module], synchronize: Callable[[], None]
) -> ProtocolDriver:
    """Return what gives batches to *method* as *protocol* says."""
    if protocol.stream_speed is not None:
        return RealTimeDriver(method, speed=protocol.stream_speed, source=make_source(), synchronize=synchronize)
    if protocol.shift == "episodic":
        return EpisodicDriver(method)
    return WindowDriver(method, size=protocol.window) if protocol.window > 1 else ProtocolDriver(method)
