"""Ctrl-C ends a command within two seconds, wherever it lands.

Dagster catches SIGINT while it runs a job, and looks at it between some steps only: one at the start or the end of a
run is lost. Python also writes the number of each signal to a file descriptor, whoever handles it. A thread reads it.
"""

import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

EXIT_STATUS = 128 + signal.SIGINT
_GRACE_S = 1.5
"""Seconds that the command has to end by itself. Whatever it then leaves behind, the next command removes."""
_LINE = b"interrupted; what is finished is kept\n"
_SHOW_CURSOR = b"\x1b[?25h"
"""For terminals: progress bars hide the cursor."""
_is_interrupted = threading.Event()
_ending = threading.Lock()
"""Of the thread that ends the process: the main thread and the one that watches can come to it at once."""


class InterruptedExit(SystemExit):
    """A `KeyboardInterrupt` that click passes on: for a plain one, it would only print "Aborted!"."""

    def __init__(self) -> None:
        super().__init__(EXIT_STATUS)


def is_interrupted() -> bool:
    """Return whether this command received SIGINT."""
    return _is_interrupted.is_set()


@contextmanager
def ends_on_interrupt() -> Iterator[None]:
    """End the process with `EXIT_STATUS` and one line if it receives SIGINT in the block, within `_GRACE_S`."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread can handle signals
        return
    reading, writing = socket.socketpair()
    writing.setblocking(False)
    previous = signal.set_wakeup_fd(writing.fileno(), warn_on_full_buffer=False)
    threading.Thread(target=_watch, args=(reading,), daemon=True).start()
    try:
        yield
    except (KeyboardInterrupt, InterruptedExit):
        _is_interrupted.set()
    finally:
        signal.set_wakeup_fd(previous)
        if _is_interrupted.is_set():
            sys.stdout.flush()
            sys.stderr.flush()
            _end_now()
        writing.close()


def _watch(reading: socket.socket) -> None:
    """Wait for SIGINT, and then for another one or until the time is over; return when the block has ended."""
    deadline_s: float | None = None
    with reading:
        while True:
            reading.settimeout(deadline_s and max(0.001, deadline_s - time.monotonic()))
            try:
                received = reading.recv(64)
            except TimeoutError:
                _end_now()
            if not received:
                return
            if num_interrupts := received.count(signal.SIGINT):
                if _is_interrupted.is_set() or num_interrupts > 1:
                    _end_now()
                _is_interrupted.set()
                deadline_s = time.monotonic() + _GRACE_S


def _end_now() -> None:
    """End the process without waiting for anything: every file is published by a rename, so none is half-written."""
    with _ending:
        os.write(2, (_SHOW_CURSOR if os.isatty(2) else b"") + _LINE)
        os._exit(EXIT_STATUS)
