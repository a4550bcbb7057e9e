"""Durations by a monotonic clock, and memory of this process."""

import resource
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

GIB = 2**30


@dataclass(kw_only=True, slots=True)
class Lap:
    """One measured duration."""

    wall_s: float = 0.0


@contextmanager
def timed() -> Iterator[Lap]:
    """Measure the duration of the block in seconds."""
    lap = Lap()
    started = time.perf_counter()
    yield lap
    lap.wall_s = time.perf_counter() - started


def peak_rss_gib() -> float:
    """Return the peak resident memory of this process, in GiB."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / GIB
