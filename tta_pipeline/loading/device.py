"""Copy batches to the compute device, one batch while the device computes on another.

This works for every kind of device: `torch.get_device_module` returns the streams and events of its kind.
"""

import time
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple, Protocol

import torch

from tta_pipeline.domain.ordering import Indices
from tta_pipeline.loading.reader import Batch


class Event(Protocol):
    """A moment in the work of a device: what the `Event` of its torch module marks."""

    def record(self) -> None:
        """Mark the moment when the work submitted so far is done."""
        ...

    def synchronize(self) -> None:
        """Block until that work is done."""
        ...

    def elapsed_time(self, end: Any) -> float:
        """Return the milliseconds from this event to *end*."""
        ...


class DeviceBatch(NamedTuple):
    """Consecutive samples of a stream on the compute device."""

    images: torch.Tensor
    """Pixels, uint8 (B, H, W, 3), RGB."""
    labels: torch.Tensor
    """Labels, int64 (B,), on the host."""
    indices: Indices
    """Positions of the samples in the sample index, shape (B,)."""
    data_wait_s: float
    """Seconds from the request until the stream delivered the batch."""
    copied: tuple[Event, Event] | None
    """Start and end of the copy to the device; None if the copy is not timed, or nothing is copied."""


def accelerator_kind() -> str:
    """Return the kind of this machine's accelerator, such as cuda; cpu if there is none."""
    found = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return found.type if found is not None else "cpu"


def list_devices() -> tuple[str, ...]:
    """Return the accelerators of this machine, such as cuda:0 and cuda:1."""
    kind = accelerator_kind()
    return () if kind == "cpu" else tuple(f"{kind}:{number}" for number in range(torch.accelerator.device_count()))


def has_streams(device: torch.device) -> bool:
    """Return whether *device* can copy while it computes."""
    return device.type != "cpu" and hasattr(torch.get_device_module(device), "Stream")


def pins_memory(device: torch.device | None = None) -> bool:
    """Return whether batches for *device*, by default this machine's, belong in pinned memory."""
    return has_streams(device or torch.device(accelerator_kind()))


def move_to_device(batches: Iterable[Batch], device: torch.device) -> Iterator[DeviceBatch]:
    """Yield *batches* on *device*; if it can, the device copies the next batch while it computes on the current one."""
    if has_streams(device):
        yield from _copy_ahead(batches, device)
        return
    for batch, data_wait_s in _time_batches(batches):
        yield DeviceBatch(batch.images.to(device), batch.labels, batch.indices, data_wait_s, None)


def _time_batches(batches: Iterable[Batch]) -> Iterator[tuple[Batch, float]]:
    """Yield each batch with the seconds until it arrived."""
    asked = time.perf_counter()
    for batch in batches:
        yield batch, time.perf_counter() - asked
        asked = time.perf_counter()


def _copy_ahead(batches: Iterable[Batch], device: torch.device) -> Iterator[DeviceBatch]:
    stream = torch.get_device_module(device).Stream(device)
    waiting: _PendingCopy | None = None
    for batch, data_wait_s in _time_batches(batches):
        copying = _PendingCopy(batch, data_wait_s, device, stream)
        if waiting is not None:
            yield waiting.result()
        # Requesting the next batch allows the pinned memory of this one to be overwritten.
        copying.end.synchronize()
        waiting = copying
    if waiting is not None:
        yield waiting.result()


class _PendingCopy:
    """A batch of bytes that is being copied to the device."""

    def __init__(self, batch: Batch, data_wait_s: float, device: torch.device, stream: Any) -> None:
        self._batch = batch
        self._data_wait_s = data_wait_s
        self._module = torch.get_device_module(device)
        self._start, self.end = _new_event(device), _new_event(device)
        with self._module.stream(stream):
            self._start.record()
            self._images = batch.images.to(device, non_blocking=True)
            self.end.record()

    def result(self) -> DeviceBatch:
        current = self._module.current_stream(self._images.device)
        current.wait_event(self.end)
        self._images.record_stream(current)
        batch = self._batch
        return DeviceBatch(self._images, batch.labels, batch.indices, self._data_wait_s, (self._start, self.end))


def synchronize(device: torch.device) -> None:
    """Block until *device* is idle."""
    module = torch.get_device_module(device)
    module.synchronize(device) if has_streams(device) else module.synchronize()


def record_event(device: torch.device) -> Event:
    """Return an event that marks the moment when *device* has done all work submitted to its current stream."""
    event = _new_event(device)
    if has_streams(device):
        event.record(torch.get_device_module(device).current_stream(device))  # type: ignore[call-arg] # of that device
    else:
        event.record()
    return event


def _new_event(device: torch.device) -> Event:
    event: Event = torch.get_device_module(device).Event(enable_timing=True)
    return event


def as_floats(images: torch.Tensor) -> torch.Tensor:
    """Return uint8 (B, H, W, 3) as float32 (B, 3, H, W) in [0, 1], in channels-last memory like the pixels."""
    return images.permute(0, 3, 1, 2).float().div_(255)
