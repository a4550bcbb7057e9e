"""Short lists on one line, for messages."""

from collections.abc import Mapping, Sequence


def abbreviate_list(found: Sequence[str], separator: str = ", ") -> str:
    """Return the first three of *found* on one line, with the number of the others."""
    more = [f"and {len(found) - 3:,} more"] if len(found) > 3 else []
    return separator.join([*found[:3], *more])


def first_few(found: Sequence[object], num_shown: int) -> str:
    """Return the first *num_shown* of *found* on one line, with dots if there are more."""
    return ", ".join(map(str, found[:num_shown])) + (", ..." if len(found) > num_shown else "")


def describe_extensions(extensions: Mapping[str, int]) -> str:
    """Return the number of files with each extension as text, such as `3 .jpg, 1 .png`."""
    return abbreviate_list([f"{count:,} .{name}" for name, count in sorted(extensions.items())])
