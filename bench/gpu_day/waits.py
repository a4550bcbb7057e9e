"""Section of host waits inside a batch: while the host waits, it submits no work to the device."""

import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from bench.gpu_day.lines import Figure
from bench.gpu_day.passes import (
    NOT_HERE,
    OF_VIEWS,
    ON_ANY_NETWORK,
    figures_of_each,
    lease_device,
    method_of,
    method_of_plan,
    network_of,
    pixels,
)
from bench.gpu_day.plan import Plan
from tta_pipeline.evaluation.scores import score_samples
from tta_pipeline.evaluation.stream_states import StreamStates
from tta_pipeline.loading.device import as_floats
from tta_pipeline.methods.method import Method

_WITHOUT = ("source", "norm", "tent")
"""Methods that need no wait in a batch."""
_NUM_BATCHES = 3
_ANY = "0" * 64
"""Hash of a result that belongs to no experiment."""


def waits(plan: Plan) -> Iterator[Figure]:
    """Count the waits of each method in batches after the first two, and the additional waits of a resumed stream."""
    with lease_device(plan) as device:
        yield from _after_restoring(plan, device)
        yield from figures_of_each(ON_ANY_NETWORK, lambda name: [_waits_of(name, plan, device)])


def _waits_of(name: str, plan: Plan, device: torch.device) -> Figure:
    what, asked = f"{name}: waits a batch", "== 0" if name in _WITHOUT else ""
    if not can_report_waits(device):
        return Figure(what=what, asked=asked, why_not=NOT_HERE)
    method = method_of_plan(plan, name, device)
    size = 4 if name in OF_VIEWS else plan.small_batch
    images, labels = pixels(plan, device, batch_size=size), torch.zeros(size, dtype=torch.int64)

    found = _count_waits(_batch_of(method, images, labels, device), device)
    places = "; ".join(f"{place} {count / _NUM_BATCHES:g}" for place, count in found.most_common(5))
    return Figure(what=what, found=found.total() / _NUM_BATCHES, asked=asked, text=places)


def _after_restoring(plan: Plan, device: torch.device) -> Iterator[Figure]:
    """Count the waits of tent before and after its state is restored from a file; Adam's counters are restored too."""
    what = "waits a batch after resuming, more than before"
    if not can_report_waits(device):
        yield Figure(what=what, asked="== 0", why_not=NOT_HERE)
        return
    images, labels = pixels(plan, device, batch_size=plan.small_batch), torch.zeros(plan.small_batch, dtype=torch.int64)
    states = StreamStates(folder=plan.folder / "waits")
    first = _tent(plan, device)
    before = _count_waits(_batch_of(first, images, labels, device), device)
    states.save(_ANY, first.state_dict())
    second, kept = _tent(plan, device), states.read(_ANY, lambda _: None)
    assert kept is not None
    with host_waits(device) as restoring:
        second.load_state_dict(kept)
    after = _count_waits(_batch_of(second, images, labels, device), device, num_warm=0)
    places = "; ".join(f"{place} {count / _NUM_BATCHES:g}" for place, count in after.most_common(5))
    yield Figure(what=what, found=(after.total() - before.total()) / _NUM_BATCHES, asked="== 0", text=places)
    yield Figure(what="waits while a state is restored, once a stream", found=restoring.total())


def _tent(plan: Plan, device: torch.device) -> Method:
    return method_of(
        "tent", network_of(plan, device), num_classes=plan.num_classes, image_size=plan.image_size,
        batch_size=plan.small_batch, optimizer="adam",
    )  # fmt: skip


def _batch_of(method: Method, images: torch.Tensor, labels: torch.Tensor, device: torch.device) -> Callable[[], None]:
    def batch() -> None:
        with torch.autocast(device.type, torch.bfloat16, cache_enabled=False):
            logits = method.predict(as_floats(images))
        score_samples(logits.float().log_softmax(1), labels, labels)

    return batch


def _count_waits(batch: Callable[[], None], device: torch.device, *, num_warm: int = 2) -> Counter[str]:
    """Count the waits of a few batches after the first *num_warm*."""
    for _ in range(num_warm):
        batch()
    with host_waits(device) as found:
        for _ in range(_NUM_BATCHES):
            batch()
    return found


def can_report_waits(device: torch.device) -> bool:
    """Return whether *device* can report waits of the host."""
    return hasattr(torch.get_device_module(device), "set_sync_debug_mode")


@contextmanager
def host_waits(device: torch.device) -> Iterator[Counter[str]]:
    """Count the waits of the host for *device* in the block, by source line; the counts are complete at its end."""
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
