"""The number of accelerators of this machine, and of runs at once, without the seconds that importing torch takes."""

import os
from itertools import takewhile
from pathlib import Path

from tta_pipeline.util.environment import read_positive_int

CONCURRENT_RUNS_VARIABLE = "TTA_CONCURRENT_RUNS"
FEWEST_CONCURRENT_RUNS = 2
"""Runs at once on a machine with at most one device: one reads and writes shards while the other computes."""


def concurrent_runs() -> int:
    """Return how many runs this machine should do at once.

    Raises:
        SettingsError: the value of the environment variable is not a whole number.
    """
    return read_positive_int(CONCURRENT_RUNS_VARIABLE) or max(FEWEST_CONCURRENT_RUNS, count_accelerators())


def count_accelerators(devices: Path = Path("/dev")) -> int:
    """Return the number of NVIDIA devices that a process started here would see.

    The driver makes a file for each device in the folder *devices*; a container has only the files of its own devices.
    `CUDA_VISIBLE_DEVICES` is read as CUDA reads it: up to the first entry that is not a device. Devices of other makers
    are not counted.
    """
    num_found = len([each for each in devices.glob("nvidia*") if each.name.removeprefix("nvidia").isdigit()])
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None or not num_found:
        return num_found
    names = [name.strip() for name in visible.split(",")]
    return len(list(takewhile(lambda name: _is_device(name, num_found), names)))


def _is_device(name: str, num_found: int) -> bool:
    return int(name) < num_found if name.isdigit() else name.startswith(("GPU-", "MIG-"))
