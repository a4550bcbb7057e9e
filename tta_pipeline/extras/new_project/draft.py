"""A benchmark file that is not written yet."""

from typing import NamedTuple


class Draft(NamedTuple):
    """A benchmark file that is not written yet."""

    text: str
    commands: tuple[str, str]
    """The commands to run next: one that tries a part, and one that runs all."""
    remarks: tuple[str, ...]
    """What the user should know of the images that were found; the text has these sentences too."""
