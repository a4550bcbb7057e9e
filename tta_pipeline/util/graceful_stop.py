"""A scheduler's request to end after the current cell, before the scheduler kills the process."""

import signal
import threading
from types import FrameType

from tta_pipeline.errors import StoppedError

STOP_SIGNAL = signal.SIGUSR1
"""The signal that carries the request."""
EXIT_STATUS = 75
"""Exit status of a program that ended on request: EX_TEMPFAIL of sysexits.h, "start it again"."""
_is_asked = threading.Event()


def handle_stop_signal() -> None:
    """Handle the signal from now on; without this call, the signal ends the process at once."""
    signal.signal(STOP_SIGNAL, _on_signal)


def is_stop_requested() -> bool:
    """Return whether this process was asked to end."""
    return _is_asked.is_set()


def raise_if_stop_requested() -> None:
    """Raise an error if this process was asked to end."""
    if is_stop_requested():
        raise StoppedError(
            f"found {STOP_SIGNAL.name}: the time of this job is nearly over; finished cells are recorded: start it "
            "again"
        )


def _on_signal(number: int, frame: FrameType | None) -> None:
    del number, frame
    _is_asked.set()
