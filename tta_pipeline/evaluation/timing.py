"""Honest durations: a monotonic clock, and a device that has finished what it was asked."""

import resource
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

GIB = 2**30


@dataclass(kw_only=True, slots=True)
class Lap:
    """One measured stretch."""

    wall_s: float = 0.0


@contextmanager
def timed(device: torch.device | None = None) -> Iterator[Lap]:
    """Measure the block in seconds, with *device* idle at both ends if one is given."""
    _synchronize(device)
    lap = Lap()
    started = time.perf_counter()
    yield lap
    _synchronize(device)
    lap.wall_s = time.perf_counter() - started


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


def _synchronize(device: torch.device | None) -> None:
    if device is not None and device.type == "cuda":
        torch.cuda.synchronize(device)
