"""Whole numbers in environment variables, for settings that are needed before a run has a configuration."""

import os

from tta_pipeline.errors import SettingsError


def read_positive_int(name: str) -> int | None:
    """Return the value of the environment variable *name*, 1 or more; None if the variable is unset or empty."""
    text = os.environ.get(name, "").strip()
    if not text:
        return None
    if not (text.isascii() and text.isdigit() and int(text)):
        raise SettingsError(f"{name} is {text!r}; expected a whole number of at least 1: change or unset it")
    return int(text)
