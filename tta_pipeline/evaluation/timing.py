"""Honest durations: a monotonic clock, and a device that has finished what it was asked."""

import resource
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from tta_pipeline.streaming.device import timing_event

GIB = 2**30


@dataclass(kw_only=True, slots=True)
class Lap:
    """One measured stretch."""

    wall_s: float = 0.0


@contextmanager
def timed() -> Iterator[Lap]:
    """Measure the block in seconds."""
    lap = Lap()
    started = time.perf_counter()
    yield lap
    lap.wall_s = time.perf_counter() - started


Mark = float | torch.cuda.Event
"""A moment: of the host's clock in seconds, or in the work of a CUDA device."""


class Clock:
    """Marks moments in what a device does, without making the host wait for it."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def mark(self) -> Mark:
        """Return the moment when the device is done with what it was asked so far."""
        if self._device.type != "cuda":
            return time.perf_counter()
        event = timing_event()
        event.record(torch.cuda.current_stream(self._device))
        return event

    def wait_for(self, mark: Mark) -> None:
        """Return when *mark* has come."""
        if isinstance(mark, torch.cuda.Event):
            mark.synchronize()

    def synchronize(self) -> None:
        """Return when the device has nothing to do."""
        _synchronize(self._device)

    def seconds(self, begin: Mark, end: Mark) -> float:
        """Return the time between two moments that have come."""
        if isinstance(begin, float):
            assert isinstance(end, float)
            return end - begin
        assert isinstance(end, torch.cuda.Event)
        return float(begin.elapsed_time(end)) / 1000


def reset_peak_memory(device: torch.device) -> None:
    """Begin a new measurement of peak device memory."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def peak_cuda_gib(device: torch.device) -> float | None:
    """Return the most memory allocated on *device* since the last reset, in GiB; None on a CPU."""
    return torch.cuda.max_memory_allocated(device) / GIB if device.type == "cuda" else None


def peak_rss_gib() -> float:
    """Return the most memory this process ever had resident, in GiB."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / GIB


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
