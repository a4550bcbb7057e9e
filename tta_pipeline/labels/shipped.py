"""Class names in label order that come with the project, a text file of one name a line for each list."""

from functools import cache
from pathlib import Path

from tta_pipeline.errors import ClassMapError

_LISTS = Path(__file__).parent / "lists"


def shipped_names() -> tuple[str, ...]:
    """Return the names of the lists."""
    return tuple(sorted(path.stem for path in _LISTS.glob("*.txt")))


@cache
def shipped_classes(name: str) -> tuple[str, ...]:
    """Return the classes of the list *name*, in label order.

    Raises:
        ClassMapError: there is no list of that name.
    """
    if name not in shipped_names():
        raise ClassMapError(f"found no class list {name!r}; expected one of {', '.join(shipped_names())}")
    return tuple((_LISTS / f"{name}.txt").read_text().split("\n")[:-1])
