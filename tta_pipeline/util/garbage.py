"""Switches Python's garbage collector off while millions of tuples are made."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def uncollected() -> Iterator[None]:
    """Switch the garbage collector off in the block.

    Tuples of text and numbers hold no garbage, but Python would search all of them again and again, each time longer: a
    third of the time it takes to list a hundred thousand files and to name their samples.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
