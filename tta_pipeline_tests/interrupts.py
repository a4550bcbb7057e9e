"""Processes that tests interrupt."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def interruptible() -> Iterator[None]:
    """Let the processes started in this block, and their child processes, receive SIGINT.

    A shell without job control makes background commands, such as `nohup make test &`, ignore SIGINT, and every process
    that they start inherits this.
    """
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
