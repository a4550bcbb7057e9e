"""The nearest known names to a misspelt name, for messages."""

import difflib
from collections.abc import Iterable, Sequence

_MOST_LISTED = 8
"""Most names that a message lists; from a longer list it shows the nearest names and where to find the rest."""
_MOST_NEAR = 3


def name_choices(found: object, known: Iterable[object], *, listed_in: str) -> str:
    """Return what follows `expected one of`: all *known* names if they are few, and the nearest ones to *found*.

    Args:
        found: The name that is not known, or several.
        known: The names to choose from.
        listed_in: The page, command or file that lists all of them, for a message that does not.
    """
    choices = list(dict.fromkeys(map(str, known)))
    near = find_near_names(found, choices)
    asked = f"did you mean {_either(near)}?" if near else ""
    if len(choices) <= _MOST_LISTED:
        return (", ".join(choices) or "none") + (f" ({asked})" if asked else "")
    first = "" if near else f", such as {', '.join(choices[:_MOST_NEAR])}"
    return f"{len(choices):,} names{first} ({asked + ' ' if asked else ''}{listed_in} lists them)"


def find_near_names(found: object, known: Sequence[str]) -> tuple[str, ...]:
    """Return the at most three of *known* that are most like *found*, a name or several, without regard to case."""
    names = [name for name in (found if isinstance(found, list | tuple | set) else [found]) if name not in known]
    by_lower = {name.lower(): name for name in reversed(known)}
    near = [
        by_lower[match]
        for name in names
        for match in difflib.get_close_matches(str(name).lower(), by_lower, n=_MOST_NEAR, cutoff=0.6)
    ]
    return tuple(dict.fromkeys(near))[:_MOST_NEAR]


def _either(names: Sequence[str]) -> str:
    return " or ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)
