"""The devices of this machine: their names, and the device that a process uses."""

from dataclasses import dataclass

import torch

from tta_pipeline.errors import EvaluationError
from tta_pipeline.loading.device import accelerator_kind, list_devices

_BACKENDS = {"cuda": "nccl", "xpu": "xccl"}
"""Libraries by which processes exchange tensors, by kind of device; otherwise gloo."""

_WITHOUT_FLOAT64 = ("mps",)


@dataclass(frozen=True, kw_only=True)
class DeviceFacts:
    """A device of this machine, in words."""

    device: str
    """Its name in torch, such as cuda:0."""
    name: str
    memory_bytes: int | None


def torch_build() -> str:
    """Return the kind of accelerator for which this torch was built, in words."""
    for name, version in (("CUDA", torch.version.cuda), ("ROCm", torch.version.hip), ("XPU", torch.version.xpu)):
        if version:
            return f"{name} {version}"
    return "for MPS" if torch.backends.mps.is_built() else "without accelerator"


def device_facts() -> tuple[DeviceFacts, ...]:
    """Return the accelerators of this machine with their names and sizes."""
    return tuple(
        DeviceFacts(
            device=device,
            name=device_name(torch.device(device)) or device,
            memory_bytes=getattr(_properties(torch.device(device)), "total_memory", None),
        )
        for device in list_devices()
    )


def device_type(device: str) -> str:
    """Return the kind, such as cpu or cuda, of *device* in the notation of `Machine`."""
    return accelerator_kind() if device == "auto" else device.partition(":")[0]


def find_devices(device: str) -> tuple[str, ...]:
    """Return the devices of this machine that *device*, in the notation of `Machine`, allows.

    Raises:
        EvaluationError: this machine has none of them.
    """
    kind, found = accelerator_kind(), list_devices()
    if "cpu" in (device, device_type(device)):
        return ("cpu",)
    if wanted := found if device in ("auto", kind) else tuple(name for name in found if name == device):
        return wanted
    has = f"has {', '.join(found)}" if found else f"has no accelerator that torch ({torch_build()}) can use"
    choices = ["auto", "cpu", *dict.fromkeys([kind, *found] if found else [])]
    raise EvaluationError(f"device is {device!r}, but this machine {has}; expected {' or '.join(choices)}: choose one")


def device_name(device: torch.device) -> str | None:
    """Return the name of the accelerator, such as NVIDIA H200; None for a CPU."""
    if device.type == "cpu":
        return None
    name = getattr(torch.get_device_module(device), "get_device_name", None)
    return str(name(device)) if name else device.type


def select_device_of_rank(local_rank: int) -> torch.device:
    """Return the device of process *local_rank* on this machine, and make it the current device of the process.

    Slurm may make only one device visible to each task, which is then the first.

    Raises:
        EvaluationError: there are fewer devices than processes.
    """
    found = list_devices()
    if not found:
        return torch.device("cpu")
    if len(found) == 1:
        return make_current(torch.device(found[0]))
    if local_rank >= len(found):
        raise EvaluationError(
            f"This is process {local_rank} of this machine, but there are only {len(found)} devices, "
            f"{', '.join(found)}; expected one device per process: launch fewer processes per machine"
        )
    return make_current(torch.device(found[local_rank]))


def make_current(device: torch.device) -> torch.device:
    """Make *device* the current one of this process, and return it."""
    set_device = getattr(torch.get_device_module(device), "set_device", None)
    if set_device:
        set_device(device)
    return device


def distributed_backend(device: torch.device) -> str:
    """Return the library by which processes with such devices exchange tensors."""
    return _BACKENDS.get(device.type, "gloo")


def devices_with_random_state(device: torch.device) -> list[torch.device]:
    """Return the devices, other than the CPU, whose random state changes when *device* is used."""
    return [] if device.type == "cpu" else [device]


def require_float64(device: torch.device) -> None:
    """Require that *device* has float64, which is needed to sum losses in training.

    Raises:
        EvaluationError: *device* has no float64.
    """
    if device.type in _WITHOUT_FLOAT64:
        raise EvaluationError(
            f"device is {device}, which has no float64; expected a device that can sum losses in float64: train with "
            "`device: cpu`"
        )


def identity_of(device: torch.device) -> str:
    """Return the name of *device* that is the same in every process of this machine, whichever devices it sees."""
    return str(getattr(_properties(device), "uuid", None) or str(device).replace(":", "-"))


def _properties(device: torch.device) -> object:
    properties = getattr(torch.get_device_module(device), "get_device_properties", None)
    return properties(device) if properties else None
