"""Lists and values on one line, for messages."""

from collections.abc import Mapping, Sequence


def abbreviate_list(found: Sequence[object], separator: str = ", ", *, most: int = 3) -> str:
    """Return the first *most* of *found* on one line, with the number of the others."""
    more = [f"and {len(found) - most:,} more"] if len(found) > most else []
    return separator.join([*map(str, found[:most]), *more])


def short_repr(value: object, limit: int = 80) -> str:
    """Return the repr of *value*, cut to *limit* characters."""
    text = repr(value)
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def describe_extensions(extensions: Mapping[str, int]) -> str:
    """Return the number of files with each extension as text, such as `3 .jpg, 1 .png`."""
    return abbreviate_list([f"{count:,} .{name}" for name, count in sorted(extensions.items())])
