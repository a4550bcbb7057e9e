"""Section that describes the machine and measures the speed of copies to the device."""

import platform
import shutil
import subprocess
from collections.abc import Iterator
from importlib.metadata import version

import torch

from bench.gpu_day.lines import Figure
from bench.gpu_day.passes import lease_device, median
from bench.gpu_day.plan import Plan
from tta_pipeline.evaluation.device.clock import Clock
from tta_pipeline.evaluation.device.devices import device_facts, device_name, torch_build
from tta_pipeline.evaluation.machine import cpu_model, machine_facts
from tta_pipeline.loading.device import pins_memory

_CLOCKS = "driver_version,clocks.sm,clocks.max.sm,clocks.mem,power.limit,temperature.gpu"
_NUM_COPIES = 20


def machine(plan: Plan) -> Iterator[Figure]:
    """Yield versions, clocks, and copies from pinned and pageable memory."""
    with lease_device(plan) as device:
        yield Figure(what="device", text=device_name(device) or cpu_model())
        yield Figure(what="versions", text=_versions())
        for facts in device_facts():
            yield Figure(what=f"memory of {facts.device}", found=(facts.memory_bytes or 0) / 2**30, unit="GiB")
        yield Figure(what="cores", found=machine_facts(device)["num_cores"], text=cpu_model())
        yield _clocks(device)
        num_bytes = plan.batch_size * plan.image_size**2 * 3
        for is_pinned, offset in ((True, 0), (True, 16), (False, 0)):
            yield _copies(device, num_bytes, is_pinned=is_pinned, offset=offset)


def _versions() -> str:
    names = ("torchvision", "numpy", "simplejpeg", "pydantic")
    found = ", ".join(f"{name} {version(name)}" for name in names)
    cudnn = torch.backends.cudnn.version() if torch.backends.cudnn.is_available() else None
    return f"Python {platform.python_version()}, torch {torch.__version__} {torch_build()}, cuDNN {cudnn}, {found}"


def _clocks(device: torch.device) -> Figure:
    if device.type != "cuda" or not shutil.which("nvidia-smi"):
        return Figure(what="clocks", why_not="not here: no CUDA device, or no nvidia-smi")
    command = ["nvidia-smi", f"--query-gpu={_CLOCKS}", "--format=csv,noheader"]
    found = subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()
    return Figure(what="clocks", text=f"{_CLOCKS}: {found}")


def _copies(device: torch.device, num_bytes: int, *, is_pinned: bool, offset: int) -> Figure:
    what = f"copies to the device, {'pinned' if is_pinned else 'pageable'} memory, {offset} bytes after its begin"
    if is_pinned and not pins_memory(device):
        return Figure(what=what, why_not="not here: batches are not pinned for this device")
    source = torch.empty(num_bytes + offset, dtype=torch.uint8, pin_memory=is_pinned)[offset:].fill_(1)
    target = torch.empty(num_bytes, dtype=torch.uint8, device=device)
    clock = Clock(device)
    rates = []
    for _ in range(_NUM_COPIES):
        begin = clock.mark()
        target.copy_(source, non_blocking=True)
        end = clock.mark()
        clock.synchronize()
        rates.append(num_bytes / clock.seconds(begin, end) / 1e9)
    return median(what, rates[2:], unit="GB/s")
