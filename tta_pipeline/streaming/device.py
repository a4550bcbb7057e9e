"""Batches on the compute device; one batch is copied while another is computed on."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import torch

from tta_pipeline.shards.ordering import Indices
from tta_pipeline.streaming.reader import Batch


class DeviceBatch(NamedTuple):
    """Consecutive samples of a stream on the compute device."""

    images: torch.Tensor
    """Pixels, uint8 (B, H, W, 3), RGB."""
    labels: torch.Tensor
    """Labels, int64 (B,), on the host."""
    indices: Indices
    """Positions of the samples in the sample index, shape (B,)."""
    copied: "tuple[torch.cuda.Event, torch.cuda.Event] | None"
    """Start and end of the copy to the device; None if nothing is copied."""


def on_device(batches: Iterable[Batch], device: torch.device) -> Iterator[DeviceBatch]:
    """Yield *batches* on *device*; on CUDA the next batch is copied while the current one is computed on."""
    if device.type == "cuda":
        yield from _on_cuda(batches, device)
        return
    for batch in batches:
        yield DeviceBatch(batch.images, batch.labels, batch.indices, None)


def _on_cuda(batches: Iterable[Batch], device: torch.device) -> Iterator[DeviceBatch]:
    stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call] # torch has no types for it
    waiting: _Copying | None = None
    for batch in batches:
        copying = _Copying(batch, device, stream)
        if waiting is not None:
            yield waiting.result()
        # Requesting the next batch allows the pinned memory of this one to be overwritten.
        copying.end.synchronize()
        waiting = copying
    if waiting is not None:
        yield waiting.result()


class _Copying:
    """A batch on its way to the device, as bytes."""

    def __init__(self, batch: Batch, device: torch.device, stream: "torch.cuda.Stream") -> None:
        self._batch = batch
        self._start, self.end = timing_event(), timing_event()
        with torch.cuda.stream(stream):
            self._start.record()
            self._images = batch.images.to(device, non_blocking=True)
            self.end.record()

    def result(self) -> DeviceBatch:
        current = torch.cuda.current_stream(self._images.device)
        current.wait_event(self.end)
        self._images.record_stream(current)
        batch = self._batch
        return DeviceBatch(self._images, batch.labels, batch.indices, (self._start, self.end))


def timing_event() -> "torch.cuda.Event":
    """Return a timing event of a CUDA device that is yet to be recorded."""
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call] # torch has no types for it


def as_floats(images: torch.Tensor) -> torch.Tensor:
    """Return uint8 (B, H, W, 3) as float32 (B, 3, H, W) in [0, 1], its memory channels-last like the pixels."""
    return images.permute(0, 3, 1, 2).float().div_(255)
