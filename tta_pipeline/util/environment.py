"""Whole numbers in environment variables, for what must be known before any run has a configuration."""

import os

from tta_pipeline.errors import SettingsError


def whole_number(name: str) -> int | None:
    """Return the value of the environment variable *name*, 1 or more; None if it is not set or empty.

    Raises:
        SettingsError: it is something else.
    """
    text = os.environ.get(name, "").strip()
    if not text:
        return None
    if not (text.isascii() and text.isdigit() and int(text)):
        raise SettingsError(f"{name} is {text!r}; expected a whole number, 1 or more: correct it, or unset it")
    return int(text)
