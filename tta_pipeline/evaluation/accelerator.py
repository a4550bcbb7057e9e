"""Devices: choice, leases, timing and arithmetic settings. Only this module names CUDA."""

import fcntl
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from operator import attrgetter
from pathlib import Path
from typing import BinaryIO

import torch

from tta_pipeline.errors import EvaluationError
from tta_pipeline.evaluation.timing import GIB
from tta_pipeline.streaming.device import timing_event

_ASK_EVERY_S = 0.5


def device_type(device: str) -> str:
    """Return cpu or cuda for a device in the notation of `Machine`."""
    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    return device.partition(":")[0]


@contextmanager
def leased_device(device: str, tell: Callable[[str], None], *, folder: Path | None = None) -> Iterator[torch.device]:
    """Yield the device to compute on; meanwhile no other run on this machine gets it.

    Args:
        device: Device in the notation of `Machine`.
        tell: Called with a message if the call has to wait.
        folder: Folder of the locks, the same for all runs on this machine.

    Raises:
        EvaluationError: the device does not exist.
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
    """Yield one of *names* that no other run on this machine has; wait for one if necessary.

    A lease is a file lock, which the kernel releases when its holder ends, even by a crash.
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


def _lock_file(path: Path) -> BinaryIO:
    # Every user of the machine may lock the file, whichever user created it.
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


Mark = float | torch.cuda.Event
"""A moment: host clock in seconds, or an event in the work of a CUDA device."""


class Clock:
    """Marks moments in the work of a device, without making the host wait for it."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def mark(self) -> Mark:
        """Return the moment when the device has done all work submitted so far."""
        if self._device.type != "cuda":
            return time.perf_counter()
        event = timing_event()
        event.record(torch.cuda.current_stream(self._device))
        return event

    def wait_for(self, mark: Mark) -> None:
        """Block until the device has reached *mark*."""
        if isinstance(mark, torch.cuda.Event):
            mark.synchronize()

    def synchronize(self) -> None:
        """Block until the device is idle."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)

    def seconds(self, begin: Mark, end: Mark) -> float:
        """Return the time between two moments that have passed."""
        if isinstance(begin, float):
            assert isinstance(end, float)
            return end - begin
        assert isinstance(end, torch.cuda.Event)
        return float(begin.elapsed_time(end)) / 1000


def reset_peak_memory(device: torch.device) -> None:
    """Start a new measurement of peak device memory."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def peak_cuda_gib(device: torch.device) -> float | None:
    """Return the most memory allocated on *device* since the last reset, in GiB; None on a CPU."""
    return torch.cuda.max_memory_allocated(device) / GIB if device.type == "cuda" else None


def pins_memory(device: torch.device) -> bool:
    """Return whether batches for *device* wait in pinned memory, so that copies overlap computation."""
    return device.type == "cuda"


def name_of(device: torch.device) -> str | None:
    """Return the name of the CUDA device; None for a CPU."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else None


def device_of_rank(local_rank: int) -> torch.device:
    """Return the device of process *local_rank* on this machine, and make it the current device of the process."""
    if not torch.cuda.is_available():
        return torch.device("cpu")
    device = torch.device("cuda", local_rank)
    torch.cuda.set_device(device)
    return device


def arithmetic_flags() -> dict[str, str | bool | None]:
    """Return torch's settings for float32 arithmetic and for determinism."""
    if hasattr(torch.backends, "fp32_precision"):  # since torch 2.9, where reading the older flags may raise
        precisions = {
            "cuda_matmul": _set_precision("cuda.matmul.", ""),
            "cudnn_conv": _set_precision("cudnn.conv.", "cudnn.", ""),
            "cpu_matmul": _set_precision("mkldnn.matmul.", ""),
        }
    else:
        precisions = {
            "cuda_matmul": "tf32" if torch.backends.cuda.matmul.allow_tf32 else "ieee",
            "cudnn_conv": "tf32" if torch.backends.cudnn.allow_tf32 else "ieee",
            "cpu_matmul": {"highest": "ieee", "high": "tf32", "medium": "bf16"}[torch.get_float32_matmul_precision()],
        }
    return {
        **precisions,
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "cudnn_deterministic": torch.backends.cudnn.deterministic,
        "cudnn_benchmark": torch.backends.cudnn.benchmark,
        "tf32_override": os.environ.get("NVIDIA_TF32_OVERRIDE"),
    }


def _set_precision(*places: str) -> str:
    """Return the precision that is set at the innermost of *places*; ieee if none is."""
    found = (attrgetter(f"{place}fp32_precision")(torch.backends) for place in places)
    return next((str(precision) for precision in found if precision != "none"), "ieee")
