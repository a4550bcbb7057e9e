"""The machine that evaluates: its settings and its hardware."""

import os
import platform
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TypedDict

import torch

from tta_pipeline.errors import SettingsError
from tta_pipeline.evaluation.device.devices import device_name
from tta_pipeline.util.local_paths import url_problem

_MAX_THREADS = 8


@dataclass(frozen=True, kw_only=True)
class Machine:
    """Settings of the machine that evaluates; plain values, so that they can be sent to another process."""

    device: str = "auto"
    """Device: auto (a free accelerator, else the CPU), cpu, a kind such as cuda (a free one), or one such as cuda:1."""
    decode_threads: int = 0
    """Number of decoding threads of each process; 0: see `default_decode_threads`."""
    streams_per_device: int = 1
    """Number of runs that share an accelerator; ignored on a CPU."""
    checkpoint_every: int = 100_000
    """Number of images after which a segment's state is saved, so that a kill loses no more; changes no prediction."""
    decoded_folder: str = ""
    """Folder that keeps cells as decoded pixels for the next experiment; if empty, they are not kept."""
    decoded_limit_bytes: int = 0
    stage_folder: str = ""
    """Folder that the shards of a cell are copied to before they are read; if empty, they are read in place."""
    stage_limit_bytes: int = 0
    remote_limit_bytes: int = 16 * 2**30
    """Size limit of cached shards from URLs, below *stage_folder* or, if that is empty, in $TMPDIR."""

    def __post_init__(self) -> None:
        """Refuse a URL in place of a folder."""
        for name, folder in (("decoded_folder", self.decoded_folder), ("stage_folder", self.stage_folder)):
            if problem := url_problem(folder):
                raise SettingsError(f"{name}: {problem}")

    @property
    def num_threads(self) -> int:
        """Number of decoding threads of this process."""
        return self.decode_threads or default_decode_threads()


def default_decode_threads() -> int:
    """Return the default number of decoding threads: one for each core, at most 8.

    More threads wait for Python's global lock and delay kernel launches. At 220 us per image, 8 threads read 24,900
    images/s, 16 read 29,700, and 64 read 18,500. Processes of one launcher share the cores.
    """
    num_processes = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    return max(1, min(_MAX_THREADS, len(os.sched_getaffinity(0)) // num_processes))


class MachineFacts(TypedDict):
    """Facts that determine the speed of a process, named as the columns of an evaluation."""

    device: str
    gpu_name: str | None
    cpu_model: str
    num_cores: int
    compute_threads: int


def machine_facts(device: torch.device) -> MachineFacts:
    """Return the facts that determine the speed of this process on *device*."""
    gpu_name = device_name(device)
    return {
        "device": gpu_name or "cpu",
        "gpu_name": gpu_name,
        "cpu_model": cpu_model(),
        "num_cores": len(os.sched_getaffinity(0)),
        "compute_threads": torch.get_num_threads(),
    }


@cache
def cpu_model() -> str:
    """Return the kernel's name for the processor model."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(errors="replace").splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "model name":
                return value.strip()
    return platform.processor() or platform.machine() or "unknown"  # some ARM kernels report no model name


def load_average() -> float | None:
    """Return the average number of running or waiting processes over the last minute; None if unknown."""
    try:
        return os.getloadavg()[0]
    except OSError:
        return None
