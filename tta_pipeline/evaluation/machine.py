"""The machine that evaluates: its settings and its hardware."""

import os
import platform
import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NamedTuple, Self, TypedDict

import torch

from tta_pipeline.errors import SettingsError
from tta_pipeline.evaluation.device.devices import device_name
from tta_pipeline.util.files import node_local_folder
from tta_pipeline.util.local_paths import url_problem

_MAX_THREADS = 8


@dataclass(frozen=True, kw_only=True)
class Machine:
    """Settings of the machine that evaluates; plain values, so that they can be sent to another process."""

    device: str = "auto"
    """Device: auto (a free accelerator, or the CPU), cpu, a kind such as cuda (a free one), or one such as cuda:1."""
    decode_threads: int = 0
    """Number of decoding threads of each process; 0: see `default_decode_threads`."""
    streams_per_device: int = 1
    """Number of runs that share an accelerator; ignored on a CPU."""
    checkpoint_every: int = 100_000
    """Number of images after which a segment's state is saved, so that a kill loses no more; changes no prediction."""
    cache_dir: str = ""
    """Folder that keeps cells as decoded pixels for the next experiment; if empty, they are not kept."""
    cache_limit_bytes: int = 0
    local_scratch_dir: str = ""
    """Folder that shards are copied to while they are read; if empty, only those at URLs, to $TMPDIR."""
    local_scratch_limit_bytes: int = 16 * 2**30

    def __post_init__(self) -> None:
        """Refuse a URL instead of a folder."""
        for name, folder in (("cache_dir", self.cache_dir), ("local_scratch_dir", self.local_scratch_dir)):
            if problem := url_problem(folder):
                raise SettingsError(f"{name}: {problem}")

    @property
    def num_threads(self) -> int:
        """Number of decoding threads of this process."""
        return self.decode_threads or default_decode_threads()

    @property
    def cache(self) -> Path | None:
        """The folder `cache_dir`; None if it is empty."""
        return Path(self.cache_dir).expanduser() if self.cache_dir else None

    @property
    def local_scratch(self) -> Path | None:
        """The folder `local_scratch_dir`; None if it is empty."""
        if self.local_scratch_dir == "$TMPDIR":
            return node_local_folder()
        return Path(self.local_scratch_dir).expanduser() if self.local_scratch_dir else None


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
    cpu_model: str
    num_cores: int
    compute_threads: int


def machine_facts(device: torch.device) -> MachineFacts:
    """Return the facts that determine the speed of this process on *device*."""
    return {
        "device": device_name(device) or "cpu",
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


class OtherLoad:
    """Cores that other processes keep busy during a measurement, among the cores that this process may use.

    A timing during other work does not describe the method: it is kept, and marked. The kernel counts in hundredths of
    a second, so the time before a short pass counts too, up to a second.
    """

    def __init__(self) -> None:
        _moments.append(_Moment.now())
        old_enough = [each for each in _moments if each.at_s <= _moments[-1].at_s - _MIN_WINDOW_S]
        self._start = (old_enough or list(_moments))[-1 if old_enough else 0]

    def measure(self) -> float | None:
        """Return the number of cores, on average since the start; None if the system does not report it."""
        now, before = _Moment.now(), self._start
        if now.busy_s is None or before.busy_s is None:
            return None
        others_s = (now.busy_s - before.busy_s) - (now.own_s - before.own_s)
        return round(max(0.0, others_s) / max(now.at_s - before.at_s, 1e-9), 3)


_MIN_WINDOW_S = 1.0


class _Moment(NamedTuple):
    at_s: float
    busy_s: float | None
    """Seconds that the cores of this process have worked for any process."""
    own_s: float

    @classmethod
    def now(cls) -> Self:
        return cls(time.monotonic(), _busy_s(), sum(os.times()[:4]))


def _busy_s() -> float | None:
    cores = {f"cpu{number}" for number in os.sched_getaffinity(0)}
    try:
        lines = [line.split() for line in Path("/proc/stat").read_text().splitlines()]
    except OSError:
        return None
    ticks = os.sysconf("SC_CLK_TCK")
    # user, nice, system, idle, iowait, irq, softirq: all but the two idle ones
    return sum(sum(map(int, (*line[1:4], *line[6:8]))) for line in lines if line[0] in cores) / ticks


_moments: deque[_Moment] = deque([_Moment.now()], maxlen=64)
"""Starts of measurements in this process, and the process's own start."""
