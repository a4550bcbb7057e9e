"""Waits of the host for the simulated device, each with the line of the project that caused it."""

import sys
import threading
import warnings
from collections import Counter
from pathlib import Path
from types import FrameType

import tta_pipeline

_PACKAGE = str(Path(tta_pipeline.__file__).parent) + "/"


class Waits:
    """Counts of waits by place and kind, such as `methods/gradient_free/lame.py:Lame._predict item`."""

    def __init__(self) -> None:
        self._counts = Counter[str]()
        self.are_warned_of = False
        """Whether a wait for just submitted work gives a warning too, as with CUDA; a wait for an event never does."""

    def note(self, kind: str) -> None:
        """Count a wait of *kind* at the innermost running function of the package."""
        frame = _frame()
        self._counts[f"{_place(frame)} {kind}"] += 1
        if self.are_warned_of and kind != "event" and frame is not None:
            message = "called a synchronizing operation of the simulated device"
            warnings.warn_explicit(message, UserWarning, frame.f_code.co_filename, frame.f_lineno)

    def take(self) -> dict[str, int]:
        """Return the counts since the last call."""
        counts, self._counts = self._counts, Counter[str]()
        return dict(counts)


def _frame() -> FrameType | None:
    """Return the innermost running function of the package; None: there is none."""
    here = _in_package(sys._getframe(2))
    if here is None:  # a thread of autograd, for which the main thread waits
        here = _in_package(sys._current_frames()[threading.main_thread().ident or 0])
    return here


def _place(here: FrameType | None) -> str:
    if here is None:
        return "elsewhere"
    function = here.f_code.co_qualname.replace(".<locals>", "")
    return f"{here.f_code.co_filename.removeprefix(_PACKAGE)}:{function}"


def _in_package(frame: FrameType | None) -> FrameType | None:
    while frame is not None and not frame.f_code.co_filename.startswith(_PACKAGE):
        frame = frame.f_back
    return frame


WAITS = Waits()
