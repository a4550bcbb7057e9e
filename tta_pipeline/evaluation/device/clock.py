"""Moments in the work of a device."""

import time

import torch

from tta_pipeline.loading.device import Event, record_event, synchronize

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
        return record_event(self._device)

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
