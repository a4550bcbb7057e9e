"""Progress of long work: units done, speed and time left."""

import time
from collections.abc import Callable
from typing import Generic, NamedTuple, Protocol, TypeVar

_T = TypeVar("_T")


class Step(NamedTuple, Generic[_T]):
    """One finished item of a sequence."""

    number: int
    """Number of this item, from 1."""
    total: int
    done: _T


class Progress:
    """Report every few seconds how many images or other units are done; the first line comes after one interval."""

    def __init__(
        self, say: Callable[[str], None], *, what: str, total: int, unit: str = "images", interval_s: float = 2.0
    ) -> None:
        self._say = say
        self._what = what
        self._total = total
        self._unit = unit
        self._interval_s = interval_s
        self._started = self._said = time.monotonic()
        self.num_done = 0
        self._num_bytes = 0

    def advance(self, number: int, num_bytes: int = 0) -> None:
        """Count *number* more units, with *num_bytes* in all, as done."""
        self.num_done += number
        self._num_bytes += num_bytes
        now = time.monotonic()
        if now - self._said >= self._interval_s:
            self._said = now
            self._say(self._line(now - self._started))

    def _line(self, elapsed_s: float) -> str:
        speed = self.num_done / elapsed_s
        left_s = max(self._total - self.num_done, 0) / speed if speed else float("inf")
        bandwidth = f", {self._num_bytes / elapsed_s / 1e6:,.1f} MB/s" if self._num_bytes else ""
        return (
            f"{self._what}: {self.num_done:,} of {self._total:,} {self._unit}, "
            f"{speed:,.0f} {self._unit}/s{bandwidth}, {left_s:,.0f} s left"
        )


class Reporter(Protocol):
    """A factory of `Progress` objects for work with a name and a number of images or other units."""

    def __call__(self, what: str, total: int, *, unit: str = "images") -> Progress:
        """Return the progress of *what*, with *total* images or another *unit*."""
        ...


def quiet_reporter(what: str, total: int, *, unit: str = "images") -> Progress:
    """Return a progress that only counts, for a process without a terminal."""
    return Progress(lambda _: None, what=what, total=total, unit=unit)


def log_reporter(log: Callable[[str], None]) -> Reporter:
    """Return a reporter that passes a line to *log* every few seconds."""

    def reporter(what: str, total: int, *, unit: str = "images") -> Progress:
        return Progress(log, what=what, total=total, unit=unit)

    return reporter


class SweepProgress:
    """Report every few seconds how many cells of a sweep are done, with a text on the latest; never omit the last."""

    def __init__(self, say: Callable[[str], None], *, num_cells: int, interval_s: float = 2.0) -> None:
        self._say = say
        self._num_cells = num_cells
        self._interval_s = interval_s
        self._started = self._said = time.monotonic()
        self._num_done = 0

    def advance(self, latest: str) -> None:
        """Count one more cell as done."""
        self._num_done += 1
        now = time.monotonic()
        if now - self._said >= self._interval_s or self._num_done == self._num_cells:
            self._said = now
            left_s = (now - self._started) / self._num_done * (self._num_cells - self._num_done)
            self._say(f"{self._num_done} of {self._num_cells} cells, {left_s:,.0f} s left; {latest}")
