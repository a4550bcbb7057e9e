"""Memory of a device: its peak, and what fits into it."""

import traceback
from collections.abc import Callable

import torch

from tta_pipeline.errors import EvaluationError
from tta_pipeline.evaluation.device.clock import Clock
from tta_pipeline.evaluation.device.devices import device_name
from tta_pipeline.evaluation.timing import GIB


def reset_peak_memory(device: torch.device) -> None:
    """Start a new measurement of peak memory, if the device supports it."""
    reset = getattr(torch.get_device_module(device), "reset_peak_memory_stats", None)
    if device.type != "cpu" and reset:
        reset(device)


def peak_memory_gib(device: torch.device) -> float | None:
    """Return the most memory allocated on *device* since the last reset, in GiB; None if it is not measured."""
    peak = getattr(torch.get_device_module(device), "max_memory_allocated", None)
    return peak(device) / GIB if device.type != "cpu" and peak else None


def release_memory(device: torch.device) -> None:
    """Give the memory that torch caches back to *device*."""
    empty = getattr(torch.get_device_module(device), "empty_cache", None)
    if device.type != "cpu" and empty:
        empty()


def out_of_memory_error(
    error: torch.OutOfMemoryError, device: torch.device, *, batch_size: int, fitting: Callable[[], int] | None = None
) -> EvaluationError:
    """Return the error for batches of *batch_size* that do not fit into *device*, with a size that fits.

    Args:
        error: The error of torch; the tensors held by its frames are freed.
        device: The device.
        batch_size: Number of samples that do not fit.
        fitting: Finds a batch size that fits, or 0 if none does; None: unknown.
    """
    found = str(error).partition("\n")[0]
    traceback.clear_frames(error.__traceback__)
    size = fitting() if fitting else None
    if size is None:
        advice = "lower batch_size, or set precision to bf16"
    else:
        advice = f"set batch_size to {size}" if size else "choose a smaller model, or a device with more memory"
    return EvaluationError(
        f"{device_name(device) or 'the CPU'} is out of memory at batches of {batch_size} ({found}); expected memory "
        f"for one batch: {advice}"
    )


def find_fitting_batch_size(attempt: Callable[[int], None], *, too_large: int, device: torch.device) -> int:
    """Return the first of half, a quarter, ... of *too_large* at which *attempt* does not run out of memory, or 0."""
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
