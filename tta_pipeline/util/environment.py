"""Environment variables, for settings that are needed before a run has a configuration."""

import os

from tta_pipeline.errors import SettingsError


def let_waiting_threads_sleep() -> None:
    """Let the threads of OpenMP sleep soon instead of spinning while they wait for each other.

    Otherwise a small network is several times slower as soon as another process uses a core. The libraries read this
    when torch is imported, so it must come first; what the user has set stays.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    os.environ.setdefault("GOMP_SPINCOUNT", "5000")


def read_positive_int(name: str) -> int | None:
    """Return the value of the environment variable *name*, 1 or more; None if the variable is unset or empty."""
    text = os.environ.get(name, "").strip()
    if not text:
        return None
    if not (text.isascii() and text.isdigit() and int(text)):
        raise SettingsError(f"{name} is {text!r}; expected a whole number of at least 1: change or unset it")
    return int(text)
