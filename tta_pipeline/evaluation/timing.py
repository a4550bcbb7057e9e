"""Durations and memory of this process, by a monotonic clock."""

import resource
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

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


def peak_rss_gib() -> float:
    """Return the most memory this process ever had resident, in GiB."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / GIB
