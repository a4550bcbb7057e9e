"""A request to end at the next boundary of cells, from a scheduler that is about to cut the process off."""

import signal
import threading
from types import FrameType

from tta_pipeline.errors import StoppedError

SIGNAL = signal.SIGUSR1
"""The signal that asks for it."""
EXIT_STATUS = 75
"""Exit status of a program that ended on request: EX_TEMPFAIL of sysexits.h, start it again."""
_is_asked = threading.Event()


def listen() -> None:
    """Take the signal for a request from now on; without this call, it ends the process at once."""
    signal.signal(SIGNAL, _ask)


def is_asked() -> bool:
    """Return whether this process was asked to end."""
    return _is_asked.is_set()


def require_time_left() -> None:
    """Go on, unless this process was asked to end.

    Raises:
        StoppedError: it was.
    """
    if is_asked():
        raise StoppedError(
            f"found {SIGNAL.name}: the time of this job is nearly over; what is finished is recorded: start it again"
        )


def _ask(number: int, frame: FrameType | None) -> None:
    del number, frame
    _is_asked.set()
