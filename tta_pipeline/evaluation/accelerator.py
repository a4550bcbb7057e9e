"""Devices that compute: choosing and leasing one, timing what it does, and how it computes. CUDA is named here only."""

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
    """Return cpu or cuda, for a device as in `Machine`."""
    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    return device.partition(":")[0]


@contextmanager
def leased_device(device: str, tell: Callable[[str], None], *, folder: Path | None = None) -> Iterator[torch.device]:
    """Yield the device to compute on, which no other run of this machine is given meanwhile.

    Args:
        device: As in `Machine`.
        tell: Called when there is something to wait for.
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


Mark = float | torch.cuda.Event
"""A moment: of the host's clock in seconds, or in the work of a CUDA device."""


class Clock:
    """Marks moments in what a device does, without making the host wait for it."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def mark(self) -> Mark:
        """Return the moment when the device is done with what it was asked so far."""
        if self._device.type != "cuda":
            return time.perf_counter()
        event = timing_event()
        event.record(torch.cuda.current_stream(self._device))
        return event

    def wait_for(self, mark: Mark) -> None:
        """Return when *mark* has come."""
        if isinstance(mark, torch.cuda.Event):
            mark.synchronize()

    def synchronize(self) -> None:
        """Return when the device has nothing to do."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)

    def seconds(self, begin: Mark, end: Mark) -> float:
        """Return the time between two moments that have come."""
        if isinstance(begin, float):
            assert isinstance(end, float)
            return end - begin
        assert isinstance(end, torch.cuda.Event)
        return float(begin.elapsed_time(end)) / 1000


def reset_peak_memory(device: torch.device) -> None:
    """Begin a new measurement of peak device memory."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def peak_cuda_gib(device: torch.device) -> float | None:
    """Return the most memory allocated on *device* since the last reset, in GiB; None on a CPU."""
    return torch.cuda.max_memory_allocated(device) / GIB if device.type == "cuda" else None


def pins_memory(device: torch.device) -> bool:
    """Return whether batches for *device* wait in pinned memory, from which they are copied while it computes."""
    return device.type == "cuda"


def name_of(device: torch.device) -> str | None:
    """Return the name of the CUDA device; None for a CPU."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else None


def device_of_rank(local_rank: int) -> torch.device:
    """Return the device of the process *local_rank* of this machine, which is the process's current one from now on."""
    if not torch.cuda.is_available():
        return torch.device("cpu")
    device = torch.device("cuda", local_rank)
    torch.cuda.set_device(device)
    return device


def arithmetic_flags() -> dict[str, str | bool | None]:
    """Return how torch computes with float32, and whether it is told to do so in one way only."""
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
    """Return the precision that is set at the innermost of *places*; IEEE's if none is."""
    found = (attrgetter(f"{place}fp32_precision")(torch.backends) for place in places)
    return next((str(precision) for precision in found if precision != "none"), "ieee")
