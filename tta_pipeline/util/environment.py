"""Environment variables: whole numbers for settings that are needed before a run has a configuration, and OpenMP's."""

import os

from tta_pipeline.errors import SettingsError


def read_positive_int(name: str) -> int | None:
    """Return the value of the environment variable *name*, 1 or more; None if the variable is unset or empty.

    Raises:
        SettingsError: the value is not a whole number of 1 or more.
    """
    text = os.environ.get(name, "").strip()
    if not text:
        return None
    if not (text.isascii() and text.isdigit() and int(text)):
        raise SettingsError(f"{name} is {text!r}; expected a whole number, 1 or more: correct it, or unset it")
    return int(text)


def let_idle_threads_sleep() -> None:
    """Let threads of torch's OpenMP sleep while they wait for each other, unless the environment says otherwise.

    By default they spin, and take the cores from threads that decode and from other programs. Beside another busy
    process on two cores, a batch of digits took 107 to 169 ms with spinning threads, and 16 to 25 ms with sleeping
    ones. OpenMP reads the variable when torch is imported, so call this before.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
