"""Devices: which there are, leases, clocks, memory, and settings of arithmetic.

Only this module knows kinds of devices. Everything else asks `torch.get_device_module`, so that CUDA, ROCm (which torch
calls cuda), XPU and others take one road. What a kind lacks is found out by its module: MPS, for example, has no
streams, so that nothing is copied while it computes, and no measure of peak memory.
"""

import fcntl
import os
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import BinaryIO, Literal

import torch

from tta_pipeline.errors import EvaluationError
from tta_pipeline.evaluation.timing import GIB
from tta_pipeline.loading.device import Event, devices, kind_of_machine, recorded_event, synchronize
from tta_pipeline.util.files import open_lock

Precision = Literal["fp32", "tf32", "bf16", "fp16"]
"""Precision of the forward pass: fp32 is IEEE's, also in convolutions; tf32 rounds the factors of products to 10 bits;
bf16 and fp16 are what autocast casts to."""

_ASK_EVERY_S = 0.5
_BACKENDS = {"cuda": "nccl", "xpu": "xccl"}
"""Libraries by which processes exchange tensors, by kind of device; otherwise gloo."""
_TF32_KINDS = ("cuda",)
_WITHOUT_FLOAT64 = ("mps",)
_CAST_TO = {"bf16": torch.bfloat16, "fp16": torch.float16}

KIND_ON_CLUSTERS = "cuda"
"""Kind of device that the nodes of a cluster have, unless the user says otherwise; the machine that submits may have
none."""


@dataclass(frozen=True, kw_only=True)
class DeviceFacts:
    """A device of this machine, in words."""

    device: str
    """Its name in torch, such as cuda:0."""
    name: str
    memory_bytes: int | None


def build_of_torch() -> str:
    """Return what kind of accelerator this torch was built for, in words."""
    for name, version in (("CUDA", torch.version.cuda), ("ROCm", torch.version.hip), ("XPU", torch.version.xpu)):
        if version:
            return f"{name} {version}"
    return "for MPS" if torch.backends.mps.is_built() else "without accelerator"


def device_facts() -> tuple[DeviceFacts, ...]:
    """Return the accelerators of this machine with their names and sizes."""
    return tuple(
        DeviceFacts(
            device=device,
            name=name_of(torch.device(device)) or device,
            memory_bytes=getattr(_properties(torch.device(device)), "total_memory", None),
        )
        for device in devices()
    )


def device_type(device: str) -> str:
    """Return the kind of a device in the notation of `Machine`, such as cpu or cuda."""
    return kind_of_machine() if device == "auto" else device.partition(":")[0]


@contextmanager
def leased_device(
    device: str, tell: Callable[[str], None], *, num_streams: int = 1, folder: Path | None = None
) -> Iterator[torch.device]:
    """Yield the device to compute on, made the current one; meanwhile no other run on this machine gets it.

    Args:
        device: Device in the notation of `Machine`.
        tell: Called with a message if the call has to wait.
        num_streams: Number of runs that may share a device, if each of them says so; 1: this run has it alone.
        folder: Folder of the locks, the same for all runs on this machine.

    Raises:
        EvaluationError: the device does not exist.
    """
    if device_type(device) == "cpu":
        yield torch.device("cpu")
        return
    found = devices()
    wanted = found if device in ("auto", kind_of_machine()) else tuple(name for name in found if name == device)
    if not wanted:
        raise EvaluationError(f"device is {device!r}; expected auto, cpu or one of {', '.join(found) or 'no other'}")
    identities = {_identity(name): name for name in wanted}
    where = folder or Path(tempfile.gettempdir())
    with leased(tuple(identities), tell, num_slots=num_streams, folder=where) as identity:
        yield _made_current(torch.device(identities[identity]))


def _identity(device: str) -> str:
    """Return what names *device* in every process of this machine, whichever of them a process sees."""
    return str(getattr(_properties(torch.device(device)), "uuid", None) or device.replace(":", "-"))


def _properties(device: torch.device) -> object:
    properties = getattr(torch.get_device_module(device), "get_device_properties", None)
    return properties(device) if properties else None


def _made_current(device: torch.device) -> torch.device:
    set_device = getattr(torch.get_device_module(device), "set_device", None)
    if set_device:
        set_device(device)
    return device


@contextmanager
def leased(names: Sequence[str], tell: Callable[[str], None], *, num_slots: int = 1, folder: Path) -> Iterator[str]:
    """Yield one of *names* that no other run on this machine has, or has a free slot; wait for one if necessary.

    A lease is a file lock, which the kernel releases when its holder ends, even by a crash. A run that shares holds a
    shared lock on the name and an exclusive one on a slot; a run that does not holds an exclusive one on the name.

    Args:
        names: Names to choose from; of several, those with fewer holders come first.
        tell: Called with a message if the call has to wait.
        num_slots: Number of runs that may share a name, 1 or more.
        folder: Folder of the locks.

    Raises:
        LockError: something lies in the place of a lock that is no file.
    """
    with ExitStack() as stack:
        slots = [
            (name, stack.enter_context(_lock_file(folder / f"tta_pipeline-{name}{suffix}.lock")))
            for suffix in ([""] if num_slots == 1 else [f".{number}" for number in range(num_slots)])
            for name in names
        ]
        whole = {} if num_slots == 1 else {
            name: stack.enter_context(_lock_file(folder / f"tta_pipeline-{name}.lock")) for name in names
        }  # fmt: skip
        name, is_told = _free(slots, whole), False
        while name is None:
            if not is_told:
                tell(f"waiting for one of {', '.join(names)}; each is used by another run")
                is_told = True
            time.sleep(_ASK_EVERY_S)
            name = _free(slots, whole)
        try:
            yield name
        finally:
            for file in (*(slot for _, slot in slots), *whole.values()):
                fcntl.flock(file, fcntl.LOCK_UN)  # closing alone would leave the lock to a child forked meanwhile


def _lock_file(path: Path) -> BinaryIO:
    """Open the file, whichever user of the machine created it: a lock needs no right to write."""
    file = open_lock(path)
    with suppress(PermissionError):  # another user created it
        os.fchmod(file.fileno(), 0o444)  # whatever the umask
    return file


def _free(slots: Sequence[tuple[str, BinaryIO]], whole: Mapping[str, BinaryIO]) -> str | None:
    """Lock the first free slot of *slots*, and return its name; its file in *whole*, if any, is shared."""
    for name, slot in slots:
        shared = whole.get(name)
        if shared and not _locked(shared, fcntl.LOCK_SH):
            continue
        if _locked(slot, fcntl.LOCK_EX):
            return name
        if shared:
            fcntl.flock(shared, fcntl.LOCK_UN)  # else a run that wants the device alone would wait for this one
    return None


def _locked(file: BinaryIO, how: int) -> bool:
    try:
        fcntl.flock(file, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


Mark = float | Event
"""A moment: host clock in seconds, or an event in the work of a device."""


class Clock:
    """Marks moments in the work of a device, without making the host wait for it."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def mark(self) -> Mark:
        """Return the moment when the device has done all work submitted so far."""
        if self._device.type == "cpu":
            return time.perf_counter()
        return recorded_event(self._device)

    def wait_for(self, mark: Mark) -> None:
        """Block until the device has reached *mark*."""
        if not isinstance(mark, float):
            mark.synchronize()

    def synchronize(self) -> None:
        """Block until the device is idle."""
        if self._device.type != "cpu":
            synchronize(self._device)

    def seconds(self, begin: Mark, end: Mark) -> float:
        """Return the time between two moments that have passed."""
        if isinstance(begin, float):
            assert isinstance(end, float)
            return end - begin
        assert not isinstance(end, float)
        return float(begin.elapsed_time(end)) / 1000


def reset_peak_memory(device: torch.device) -> None:
    """Start a new measurement of peak device memory, where the device has one."""
    reset = getattr(torch.get_device_module(device), "reset_peak_memory_stats", None)
    if device.type != "cpu" and reset:
        reset(device)


def peak_gib(device: torch.device) -> float | None:
    """Return the most memory allocated on *device* since the last reset, in GiB; None where it is not measured."""
    peak = getattr(torch.get_device_module(device), "max_memory_allocated", None)
    return peak(device) / GIB if device.type != "cpu" and peak else None


def release_memory(device: torch.device) -> None:
    """Give memory that torch keeps for later back to *device*."""
    empty = getattr(torch.get_device_module(device), "empty_cache", None)
    if device.type != "cpu" and empty:
        empty()


def out_of_memory(
    error: torch.OutOfMemoryError, device: torch.device, *, batch_size: int, fitting: Callable[[], int] | None = None
) -> EvaluationError:
    """Return the error that says that *device* has no memory for batches of *batch_size*, and for which it has.

    Args:
        error: What torch raised; the tensors that its frames hold are freed.
        device: The device.
        batch_size: Number of samples for which there is no memory.
        fitting: Finds the size of batches for which there is memory, 0 if there is none; None: unknown.
    """
    found = str(error).partition("\n")[0]
    traceback.clear_frames(error.__traceback__)
    size = fitting() if fitting else None
    if size is None:
        advice = "lower batch_size, or set precision to bf16"
    else:
        advice = f"set batch_size to {size}" if size else "choose a smaller model, or a device with more memory"
    return EvaluationError(
        f"{name_of(device) or 'the CPU'} is out of memory at batches of {batch_size} ({found}); expected memory for "
        f"one batch: {advice}"
    )


def fitting_batch_size(attempt: Callable[[int], None], *, too_large: int, device: torch.device) -> int:
    """Return the first of half, a quarter, ... of *too_large* for which *attempt* does not run out of memory, or 0."""
    size = too_large // 2
    while size:
        release_memory(device)
        try:
            attempt(size)
            Clock(device).synchronize()
        except torch.OutOfMemoryError as error:
            traceback.clear_frames(error.__traceback__)
            size //= 2
        else:
            return size
    return 0


def name_of(device: torch.device) -> str | None:
    """Return the name of the accelerator, such as NVIDIA H200; None for a CPU."""
    if device.type == "cpu":
        return None
    name = getattr(torch.get_device_module(device), "get_device_name", None)
    return str(name(device)) if name else device.type


def device_of_rank(local_rank: int) -> torch.device:
    """Return the device of process *local_rank* on this machine, and make it the current device of the process.

    Slurm may show each task only its own device, which is then the first.

    Raises:
        EvaluationError: there are fewer devices than processes.
    """
    found = devices()
    if not found:
        return torch.device("cpu")
    if len(found) == 1:
        return _made_current(torch.device(found[0]))
    if local_rank >= len(found):
        raise EvaluationError(
            f"found process {local_rank} of this machine, and {len(found)} devices, {', '.join(found)}; expected a "
            "device for each process: launch fewer processes on a machine"
        )
    return _made_current(torch.device(found[local_rank]))


def exchange_backend(device: torch.device) -> str:
    """Return the library by which processes with such devices exchange tensors."""
    return _BACKENDS.get(device.type, "gloo")


def seeded_devices(device: torch.device) -> list[torch.device]:
    """Return the devices whose random state a use of *device* changes, besides the CPU's."""
    return [] if device.type == "cpu" else [device]


@contextmanager
def arithmetic(device_kind: str, precision: Precision, *, deterministic: bool = False) -> Iterator[None]:
    """Compute float32 as *precision* says, and reproducibly if *deterministic*; afterwards as before.

    On a CPU, only determinism is set: float32 there is what the user's torch makes of it, and is recorded.

    Raises:
        EvaluationError: a device of *device_kind* has no TF32, or autocast does not cast to *precision* there.
    """
    if precision == "tf32" and device_kind not in _TF32_KINDS:
        raise EvaluationError(
            f"precision is tf32 on {device_kind}; expected fp32 or bf16: only {', '.join(_TF32_KINDS)} has TF32"
        )
    if precision in _CAST_TO and not _casts(device_kind, _CAST_TO[precision]):
        raise EvaluationError(
            f"precision is {precision} on {device_kind}, where autocast of torch {torch.__version__} does not cast to "
            "it; expected one that it casts to: set precision to fp32"
        )
    with ExitStack() as stack:
        if device_kind != "cpu":
            before = _tf32_settings()
            stack.callback(_set_tf32, before)
            words = ("tf32", "ieee") if hasattr(torch.backends, "fp32_precision") else (True, False)
            _set_tf32(dict.fromkeys(before, words[precision != "tf32"]))
        if deterministic:
            stack.callback(_set_deterministic, *_determinism())
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS is reproducible only so
            _set_deterministic(True, True, False)
        yield


def _casts(device_kind: str, dtype: torch.dtype) -> bool:
    """Return whether autocast casts to *dtype*: else torch only warns, and computes in float32, as on older macOS."""
    if not torch.amp.is_autocast_available(device_kind):
        return False
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # which says what is returned here
        with torch.autocast(device_kind, dtype):
            return torch.is_autocast_enabled(device_kind)


def require_float64(device: torch.device) -> None:
    """Require that *device* adds up in float64, as a training does with its losses.

    Raises:
        EvaluationError: it has no float64.
    """
    if device.type in _WITHOUT_FLOAT64:
        raise EvaluationError(
            f"device is {device}, which has no float64; expected a device that has it, for sums of losses: train with "
            "device: cpu"
        )


def _tf32_settings() -> dict[str, str | bool]:
    """Return torch's settings for TF32 by their place below `torch.backends`."""
    return {place: attrgetter(place)(torch.backends) for place in _tf32_places()}


def _tf32_places() -> tuple[str, ...]:
    if hasattr(torch.backends, "fp32_precision"):  # since torch 2.9
        return "cuda.matmul.fp32_precision", "cudnn.conv.fp32_precision", "cudnn.rnn.fp32_precision"
    return "cuda.matmul.allow_tf32", "cudnn.allow_tf32"


def _set_tf32(values: Mapping[str, str | bool]) -> None:
    for place, value in values.items():
        owner, _, name = place.rpartition(".")
        setattr(attrgetter(owner)(torch.backends), name, value)


def _determinism() -> tuple[bool, bool, bool]:
    cudnn = torch.backends.cudnn
    return torch.are_deterministic_algorithms_enabled(), cudnn.deterministic, cudnn.benchmark


def _set_deterministic(everywhere: bool, cudnn: bool, benchmark: bool) -> None:  # noqa: FBT001 - torch's three flags
    torch.use_deterministic_algorithms(everywhere)
    torch.backends.cudnn.deterministic = cudnn
    torch.backends.cudnn.benchmark = benchmark


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
