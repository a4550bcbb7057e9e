"""A simulated accelerator, registered with PyTorch for the process, to test the code for devices without a device.

Properties shared with a real device:

- The host does not see its memory: an operation on tensors of two devices is an error.
- A copy from pinned memory is done at the latest moment that streams and events allow. If the host overwrites a buffer
  too early, pixels are always wrong, not just occasionally.
- It has no float64, like MPS: a float64 tensor is an error.
- Memory that is used on a stream without a wait for the stream before is an error; memory that is freed while another
  stream uses it is a fault in `MEMORY.faults`. Each use counts as a write.
- Each wait of the host is noted with the function of the package that caused it (`waits`).
- Live bytes are counted by storage, so that a small view that keeps a batch alive is noticed; a limit raises
  `torch.OutOfMemoryError`, in a backward pass at its end (`Memory.in_backward`).

It cannot show the following, for which a real device is needed:

- The numerics of a device's kernels, atomics, TF32 and deterministic kernels: all kernels are the CPU's.
- Autocast, which casts nothing here: the operations that a device casts, and the behaviour of bf16 and fp16 there.
- `torch.compile`, CUDA graphs, and everything else that replaces or captures kernels.
- Time: operations are as fast as on the CPU, and events are timed by the host.
- Several devices, several processes, fragmented memory, and waits inside the allocator or a library.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch.autograd import graph
from torch.utils import backend_registration

from tta_pipeline_tests.simulated.memory import MEMORY
from tta_pipeline_tests.simulated.streams import Event, Stream, current_stream, finish_all, on_stream
from tta_pipeline_tests.simulated.tensors import NAME, copied, new_tensor, pin
from tta_pipeline_tests.simulated.waits import WAITS

_KEPT: list[object] = []
"""Objects to which PyTorch refers without keeping them alive."""


@dataclass(frozen=True, kw_only=True)
class Properties:
    """Properties that the device reports."""

    name: str = "simulated accelerator"
    total_memory: int = 2**30


class DeviceModule:
    """The module that `torch.get_device_module` returns, like `torch.cuda` for CUDA."""

    Stream = Stream
    Event = Event
    current_stream = staticmethod(current_stream)
    stream = staticmethod(on_stream)

    def is_available(self) -> bool:
        """Return True."""
        return True

    def is_initialized(self) -> bool:
        """Return True."""
        return True

    def _is_in_bad_fork(self) -> bool:
        return False

    def device_count(self) -> int:
        """Return the number of devices."""
        return 1

    def current_device(self) -> int:
        """Return the number of the current device."""
        return 0

    def set_device(self, _device: object) -> None:
        """Make the only device the current one, which it is."""

    def get_device_name(self, _device: object = None) -> str:
        """Return the name of the device."""
        return Properties().name

    def get_device_properties(self, _device: object = None) -> Properties:
        """Return the properties that the device reports."""
        return Properties()

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        """Return the dtypes of autocast."""
        return [torch.bfloat16, torch.float16]

    def manual_seed_all(self, seed: int) -> None:
        """Seed nothing: random numbers of the device come from generators of the host."""

    def synchronize(self, _device: object = None) -> None:
        """Have the host wait for all work."""
        WAITS.note("synchronize")
        finish_all()

    def empty_cache(self) -> None:
        """Do nothing: freed memory is free at once."""

    def reset_peak_memory_stats(self, _device: object = None) -> None:
        """Start a new measurement."""
        MEMORY.peak_bytes = MEMORY.live_bytes

    def memory_allocated(self, _device: object = None) -> int:
        """Return the bytes that are allocated now."""
        return MEMORY.live_bytes

    def set_per_process_memory_fraction(self, fraction: float, _device: object = None) -> None:
        """Limit the process to this share of the memory."""
        MEMORY.limit_bytes = int(fraction * Properties().total_memory)

    def set_sync_debug_mode(self, mode: str) -> None:
        """Warn of each wait of the host for work that was just submitted, if *mode* is `warn`."""
        WAITS.are_warned_of = mode == "warn"

    def max_memory_allocated(self, _device: object = None) -> int:
        """Return the largest number of allocated bytes since the last reset."""
        return MEMORY.peak_bytes


class _Generator(torch.Generator):
    """A generator that claims to be on a device, but draws on the host."""

    def __new__(cls, *_: object, **__: object) -> Self:
        """Return a generator of the host."""
        return super().__new__(cls)

    def __init__(self, device: torch.device | str = "cpu") -> None:
        self._device = torch.device(device)

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        """Device of the tensors that it fills."""
        return self._device


def missing() -> str | None:
    """Return a message if this PyTorch lacks support for a device in Python, else None."""
    name = "_setup_privateuseone_for_python_backend"
    return (
        None
        if hasattr(backend_registration, name)
        else f"torch {torch.__version__} has no {name}; expected a later one"
    )


def install() -> torch.device:
    """Register the device for this process, once, before anything uses a device; return it."""
    accelerator = torch._C._acc

    class Hooks(accelerator.PrivateUse1Hooks):
        def is_available(self) -> bool:
            return True

        def is_built(self) -> bool:
            return True

        def has_primary_context(self, _device: int) -> bool:
            return True

    class Guard(accelerator.DeviceGuard):
        def type_(self) -> Any:
            return torch._C._autograd.DeviceType.PrivateUse1

    module, hooks, guard = DeviceModule(), Hooks(), Guard()
    backend_registration._setup_privateuseone_for_python_backend(NAME, module, hooks, guard)
    make_library: Any = torch.library.Library
    library = make_library("aten", "IMPL")
    library.impl("empty.memory_format", _empty, "PrivateUse1")
    library.impl("empty_strided", _empty_strided, "PrivateUse1")
    library.impl(
        "_copy_from", lambda source, target, non_blocking=False: copied(target, source, non_blocking), "PrivateUse1"
    )
    autocast: Any = make_library("_", "IMPL")
    autocast.fallback(torch.library.fallthrough_kernel, "AutocastPrivateUse1")  # it casts nothing
    _KEPT.extend([module, hooks, guard, library, autocast])
    vars(torch).update(empty=_pinning(torch.empty), Generator=_Generator)
    vars(torch.autograd).update(_engine_run_backward=MEMORY.in_backward()(graph._engine_run_backward))
    # A module that is moved or laid out anew gets new parameters: `data` cannot be set in a tensor in Python.
    torch.__future__.set_overwrite_module_params_on_conversion(True)
    return torch.device(NAME, 0)


def _empty(size: Any, *, dtype: Any = None, memory_format: Any = None, **_: object) -> torch.Tensor:
    changes = {} if memory_format is None else {"memory_format": memory_format}
    return new_tensor(lambda: torch.empty(size, dtype=dtype, device="cpu", **changes))


def _empty_strided(size: Any, stride: Any, *, dtype: Any = None, **_: object) -> torch.Tensor:
    return new_tensor(lambda: torch.empty_strided(size, stride, dtype=dtype, device="cpu"))


def _pinning(on_host: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """Return `torch.empty` with pinned memory, which only a device in C++ can have."""

    def empty(*size: Any, pin_memory: bool = False, **options: Any) -> torch.Tensor:
        tensor = on_host(*size, **options)
        return pin(tensor) if pin_memory else tensor

    return empty


@contextmanager
def limited_to(limit_bytes: int) -> Iterator[None]:
    """Limit the device's memory to *limit_bytes*."""
    MEMORY.limit_bytes = limit_bytes
    try:
        yield
    finally:
        MEMORY.limit_bytes = None
