"""Checks and short lists of names, which end up in tables, web pages and messages."""

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from tta_pipeline.errors import PipelineError

T = TypeVar("T", bound=Hashable)


def require_unicode(name: str, *, of: Path | str, error: type[PipelineError]) -> None:
    """Refuse a *name*, read from the file system or an archive, whose bytes are not UTF-8.

    Args:
        name: Name as Python reads it, with surrogates for the bytes that are not UTF-8.
        of: Archive or folder that contains the name.
        error: Type of the error that is raised.
    """
    if name.isascii():  # nearly all names are, and there are millions
        return
    try:
        name.encode()
    except UnicodeEncodeError:
        where = str(of).encode("utf-8", "backslashreplace").decode()
        found = name.encode("utf-8", "surrogateescape")
        raise error(
            f"{where}: found the name {found!r}, which is not UTF-8; expected names of images and classes in UTF-8: "
            "rename it, as `convmv -f latin1 -t utf8` does, and pack an archive again"
        ) from None


def find_duplicates(values: Iterable[T]) -> list[T]:
    """Return each of *values* that occurs more than once, in order of its first occurrence."""
    return [value for value, count in Counter(values).items() if count > 1]


def abbreviate_list(found: Sequence[str], separator: str = ", ") -> str:
    """Return the first three of *found* on one line, with the number of the others."""
    more = [f"and {len(found) - 3:,} more"] if len(found) > 3 else []
    return separator.join([*found[:3], *more])


def describe_extensions(extensions: Mapping[str, int]) -> str:
    """Return the number of files with each extension as text, such as `3 .jpg, 1 .png`."""
    return abbreviate_list([f"{count:,} .{name}" for name, count in sorted(extensions.items())])
