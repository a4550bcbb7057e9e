"""What computes: a device that is ours alone while it is used, and the threads that feed it."""

import fcntl
import os
import platform
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO

import torch

from tta_pipeline.errors import EvaluationError

_ASK_EVERY_S = 0.5


@dataclass(frozen=True, kw_only=True)
class Machine:
    """What evaluations run on; plain values, so that it can be told to another process."""

    device: str = "auto"
    """auto: a CUDA device that is free, else the CPU; cpu; cuda: a free one; cuda:1: that one."""
    num_threads: int = 2
    """Decoding threads."""
    decoded_folder: str = ""
    """Where cells are kept as decoded pixels for the next experiment; nowhere if empty."""
    decoded_limit_bytes: int = 0
    stage_folder: str = ""
    """Where the shards of a cell are copied before they are read; read in their place if empty."""
    stage_limit_bytes: int = 0


def device_type(device: str) -> str:
    """Return cpu or cuda, for a device as in `Machine`."""
    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    return device.partition(":")[0]


@contextmanager
def leased_device(device: str, tell: Callable[[str], None], *, folder: Path | None = None) -> Iterator[torch.device]:
    """Yield the device to compute on, which no other run of this machine is given meanwhile.

    Args:
        device: As in `Machine`.
        tell: Told when there is something to wait for.
        folder: Of the locks, the same for all runs of this machine.

    Raises:
        EvaluationError: there is no such device.
    """
    if device_type(device) == "cpu":
        yield torch.device("cpu")
        return
    found = [f"cuda:{number}" for number in range(torch.cuda.device_count())]
    wanted = found if device in ("auto", "cuda") else [name for name in found if name == device]
    if not wanted:
        raise EvaluationError(
            f"device is {device!r}; expected auto, cpu or one of {', '.join(found) or 'no CUDA device'}"
        )
    identities = {str(torch.cuda.get_device_properties(name).uuid): name for name in wanted}
    with leased(tuple(identities), tell, folder=folder or Path(tempfile.gettempdir())) as identity:
        yield torch.device(identities[identity])


@contextmanager
def leased(names: Sequence[str], tell: Callable[[str], None], *, folder: Path) -> Iterator[str]:
    """Yield one of *names* that nobody else of this machine has, waiting for one if need be.

    A lease is a lock on a file, which the kernel frees when its holder ends, however it ends.
    """
    with ExitStack() as stack:
        files = {name: stack.enter_context(_lock_file(folder / f"tta_pipeline-{name}.lock")) for name in names}
        name, is_told = _free(files), False
        while name is None:
            if not is_told:
                tell(f"waiting for one of {', '.join(names)}; each is used by another run")
                is_told = True
            time.sleep(_ASK_EVERY_S)
            name = _free(files)
        yield name


def machine_facts(device: torch.device) -> dict[str, Any]:
    """Return what decides how fast this process computes on *device*, as the columns of an evaluation are called."""
    gpu_name = torch.cuda.get_device_name(device) if device.type == "cuda" else None
    return {
        "device": gpu_name or "cpu",
        "gpu_name": gpu_name,
        "cpu_model": cpu_model(),
        "num_cores": len(os.sched_getaffinity(0)),
        "compute_threads": torch.get_num_threads(),
    }


@cache
def cpu_model() -> str:
    """Return the model of the processor, as the kernel calls it."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(errors="replace").splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "model name":
                return value.strip()
    return platform.processor() or platform.machine() or "unknown"  # some ARM kernels do not say


def load_average() -> float | None:
    """Return how many processes ran or waited over the last minute; None where the system does not say."""
    try:
        return os.getloadavg()[0]
    except OSError:
        return None


def _lock_file(path: Path) -> BinaryIO:
    # Whoever makes it, every user of the machine may lock it.
    descriptor = os.open(path, os.O_CREAT | os.O_RDWR, 0o666)
    return os.fdopen(descriptor, "r+b")


def _free(files: dict[str, BinaryIO]) -> str | None:
    for name, file in files.items():
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            continue
        return name
    return None
