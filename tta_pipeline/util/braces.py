"""Braces as a shell expands them: `{a,b}` and `{1..5}`."""

import re
from itertools import islice

_RANGE = re.compile(r"(-?\d{1,18})\.\.(-?\d{1,18})")


def expand(text: str, *, most: int) -> tuple[str, ...]:
    """Return what *text* expands to, in order; empty if that is nothing, or more than *most*.

    Raises:
        ValueError: the braces are unbalanced.
    """
    from braceexpand import braceexpand

    # braceexpand lists a whole range in memory before it yields its first text.
    if any(abs(int(last) - int(first)) >= most for first, last in _RANGE.findall(text)):
        return ()
    found = tuple(islice(braceexpand(text), most + 1))
    return found if len(found) <= most else ()
