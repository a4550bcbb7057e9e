"""A pause of Python's garbage collector while millions of tuples are made."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def gc_paused() -> Iterator[None]:
    """Switch the garbage collector off in the block.

    Tuples of text and numbers contain no garbage, but Python would search all of them again and again. That takes a
    third of the time for listing a hundred thousand files and naming their samples.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
