"""Waits of the host inside a batch: while it waits, nothing new is submitted to the device."""

import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from bench.gpu_day.lines import Figure
from bench.gpu_day.passes import NOT_HERE, OF_VIEWS, adapting, device_of, each, pixels
from bench.gpu_day.plan import Plan
from tta_pipeline.adaptation import METHODS
from tta_pipeline.evaluation.scores import scored_samples
from tta_pipeline.streaming.device import as_floats

_WITHOUT = ("source", "norm", "tent")
"""Methods whose batch needs no wait."""
_NUM_BATCHES = 3


def waits(plan: Plan) -> Iterator[Figure]:
    """Count the waits of each method in batches after the first two."""
    with device_of(plan) as device:
        yield from each(METHODS, lambda name: [_waits_of(name, plan, device)])


def _waits_of(name: str, plan: Plan, device: torch.device) -> Figure:
    what, asked = f"{name}: waits a batch", "== 0" if name in _WITHOUT else ""
    if not tells_waits(device):
        return Figure(what=what, asked=asked, why_not=NOT_HERE)
    method = adapting(plan, name, device)
    size = 4 if name in OF_VIEWS else plan.small_batch
    images, labels = pixels(plan, device, batch_size=size), torch.zeros(size, dtype=torch.int64)

    def batch() -> None:
        with torch.autocast(device.type, torch.bfloat16, cache_enabled=False):
            logits = method.predict(as_floats(images))
        scored_samples(logits.float().log_softmax(1), labels, labels)

    for _ in range(2):
        batch()
    with host_waits(device) as found:
        for _ in range(_NUM_BATCHES):
            batch()
    places = "; ".join(f"{place} {count / _NUM_BATCHES:g}" for place, count in found.most_common(5))
    return Figure(what=what, found=found.total() / _NUM_BATCHES, asked=asked, text=places)


def tells_waits(device: torch.device) -> bool:
    """Return whether *device* warns of waits of the host."""
    return hasattr(torch.get_device_module(device), "set_sync_debug_mode")


@contextmanager
def host_waits(device: torch.device) -> Iterator[Counter[str]]:
    """Count the waits of the host for *device* in the block, by the line that waits; complete at the block's end."""
    module = torch.get_device_module(device)
    found: Counter[str] = Counter()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        module.set_sync_debug_mode("warn")
        try:
            yield found
        finally:
            module.set_sync_debug_mode("default")
    found.update(
        f"{Path(each.filename).name}:{each.lineno}" for each in caught if "called a synchronizing" in str(each.message)
    )
