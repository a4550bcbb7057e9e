"""Python's garbage collector, kept away while millions of tuples are made."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def uncollected() -> Iterator[None]:
    """Look for no garbage in the block.

    Tuples of text and numbers hold none, but Python would look through all of them again and again, each time longer: a
    third of the time it takes to list a hundred thousand files and to name their samples.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
