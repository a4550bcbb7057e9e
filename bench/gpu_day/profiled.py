"""Section of profiles: the longest kernels, and the busy share of the device, also over a sweep of all methods."""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity

from bench.gpu_day.lines import Figure
from bench.gpu_day.passes import (
    OF_VIEWS,
    ON_ANY_NETWORK,
    figures_of_each,
    lease_device,
    method_of_plan,
    run_once,
    stream_of,
)
from bench.gpu_day.plan import Plan
from tta_pipeline.evaluation.one_pass import Pass

_NUM_KERNELS = 15
_NOT_SEEN = "not here: the profiler does not see this kind of device"


def profile(plan: Plan) -> Iterator[Figure]:
    """Profile source and tent, then a sweep."""
    with lease_device(plan) as device:
        for name, batch_size in (("source", plan.batch_size), ("tent", plan.small_batch)):
            yield from _kernels(name, plan, device, batch_size)
        yield from _sweep(plan, device)
    yield Figure(
        what="several streams on one device: speed over the sequential sweep", asked=">= 1.5",
        why_not="runs that share a device (`streams_per_device`) are processes, which a section does not start",
    )  # fmt: skip


def _kernels(name: str, plan: Plan, device: torch.device, batch_size: int) -> Iterator[Figure]:
    found = _Profiled(name, plan, device, batch_size=batch_size, num_batches=plan.num_profiled)
    if not found.events:
        yield Figure(what=f"{name}: longest kernels", why_not=_NOT_SEEN)
        return
    by_name: Counter[str] = Counter()
    for event in found.events:
        by_name[event.name] += event.time_range.elapsed_us()
    total_us = by_name.total()
    longest = "; ".join(f"{kernel[:60]} {us / total_us:.1%}" for kernel, us in by_name.most_common(_NUM_KERNELS))
    yield Figure(what=f"{name}: longest kernels, of {len(found.events)}", text=longest)
    copies, others = _split_copies(found.events)
    yield Figure(
        what=f"{name}: device busy", found=_busy_us(found.events) / 1e6 / found.collected.wall_s, is_speed=True
    )
    alone_us = _busy_us(found.events) - _busy_us(others)
    copied_us = _busy_us(copies)
    if copied_us:
        yield Figure(what=f"{name}: copies that overlap kernels", found=1 - alone_us / copied_us, is_speed=True)
    else:
        yield Figure(what=f"{name}: copies that overlap kernels", why_not="found no copy to the device")


def _sweep(plan: Plan, device: torch.device) -> Iterator[Figure]:
    """Yield the share of a sweep in which the device was busy, by our clock and by the profiler."""
    passes: list[Pass] = []
    covered_s: list[float] = []

    def figures(name: str) -> Iterator[Figure]:
        size, number = (4, 2) if name in OF_VIEWS else (plan.small_batch, plan.num_swept)
        found = _Profiled(name, plan, device, batch_size=size, num_batches=number)
        passes.append(found.collected)
        covered_s.append(_busy_us(found.events) / 1e6)
        what = f"{name}: device busy in a sweep"
        if found.events:
            num_kernels = len(found.events)
            text = f"{num_kernels / number:,.0f} kernels a batch, {1e6 * covered_s[-1] / num_kernels:.1f} us each"
            yield Figure(what=what, found=covered_s[-1] / passes[-1].wall_s, is_speed=True, text=text)
        else:
            yield Figure(what=what, why_not=_NOT_SEEN)

    yield from figures_of_each((name for name in ON_ANY_NETWORK if name != "source"), figures)
    wall_s = sum(collected.wall_s for collected in passes)
    device_idle_s = sum(batch.device_idle_s for collected in passes for batch in collected.batches)
    text = f"{len(passes)} methods, {plan.num_swept} batches each; 2 of {', '.join(OF_VIEWS)}"
    yield Figure(
        what="device busy over the sweep, by device_idle_s", found=1 - device_idle_s / wall_s, asked=">= 0.9",
        is_speed=True, text=text,
    )  # fmt: skip
    what = "device busy over the sweep, by the profiler"
    if any(covered_s):
        yield Figure(what=what, found=sum(covered_s) / wall_s, asked=">= 0.9", is_speed=True, text=text)
    else:
        yield Figure(what=what, asked=">= 0.9", why_not=_NOT_SEEN)


class _Profiled:
    """A pass of a method after the same pass, and the events of the device in it.

    After another pass, the device's libraries would choose kernels for the new sizes of the batches of ROID and others.
    """

    def __init__(self, name: str, plan: Plan, device: torch.device, *, batch_size: int, num_batches: int) -> None:
        method = method_of_plan(plan, name, device)
        stream = stream_of(plan, device, batch_size=batch_size, num_images=num_batches * batch_size)
        run_once(method, stream, device)
        method.reset()
        kinds = torch.profiler.supported_activities() - {ProfilerActivity.CPU} or {ProfilerActivity.CPU}
        with torch.profiler.profile(activities=kinds) as profiler:
            self.collected = run_once(method, stream, device)
        self.events: Sequence[Any] = [
            event
            for event in profiler.events()
            if (event.device_type == DeviceType.CPU) == (device.type == "cpu") and not event.is_user_annotation
        ]


def _split_copies(events: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """Return the copies to the device, and everything else."""
    copies = [event for event in events if event.name.startswith("Memcpy HtoD")]
    return copies, [event for event in events if not event.name.startswith("Memcpy HtoD")]


def _busy_us(events: Sequence[Any]) -> float:
    """Return the length of the union of the events' intervals, in microseconds."""
    covered, until = 0.0, float("-inf")
    for start, end in sorted((event.time_range.start, event.time_range.end) for event in events):
        covered += max(0.0, end - max(start, until))
        until = max(until, end)
    return covered
