"""Processes that tests interrupt."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def interruptible() -> Iterator[None]:
    """Let the processes started in this block hear SIGINT, and the child processes that they start.

    A shell without job control ignores SIGINT for what it starts in the background, `nohup make test &` as an example,
    and what is ignored stays so in every process that comes after.
    """
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
