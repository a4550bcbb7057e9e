"""Section of CUDA graphs (`compile: reduce-overhead`): same predictions as eager code, no recompilation."""

import time
from collections.abc import Iterator, Mapping

import torch
from torch._dynamo.utils import counters

from bench.gpu_day.lines import Figure
from bench.gpu_day.passes import (
    compile_network,
    figures_of_each,
    lease_device,
    median,
    method_of,
    pixels,
    small_network,
)
from bench.gpu_day.plan import Plan
from tta_pipeline.evaluation.device.arithmetic import arithmetic
from tta_pipeline.evaluation.device.clock import Clock
from tta_pipeline.loading.device import as_floats
from tta_pipeline.methods.method import Method

_METHODS = ("tent", "sar", "memo")
_TIMED = ("tent", "sar")
_NUM_BATCHES, _NUM_CLASSES = 4, 10
_NUM_TURNS, _NUM_TIMED = 3, 10
"""Number of turns of both ways whose speed is compared, and number of batches in each."""
_MOST = 0.02
"""Largest distance of the logits, relative to their norm, that a different order of sums may cause over a few
updates."""


def graphs(plan: Plan) -> Iterator[Figure]:
    """Compare each compiled method with its eager version."""
    if plan.is_rehearsal:
        yield Figure(what="CUDA graphs", why_not="not here: a rehearsal only traces, and runs what it traced eagerly")
    with lease_device(plan) as device, arithmetic(device.type, "fp32"):
        yield from figures_of_each(_METHODS, lambda name: _compare_modes(name, plan, device))


def _compare_modes(name: str, plan: Plan, device: torch.device) -> Iterator[Figure]:
    size = 2 if name == "memo" else plan.small_batch  # MEMO makes a step for each image
    batches = [pixels(plan, device, batch_size=size) for _ in range(_NUM_BATCHES)]
    methods = {mode: _method(name, plan, device, size, mode) for mode in ("off", "reduce-overhead")}
    eager = torch.cat([methods["off"].predict(as_floats(images)).cpu() for images in batches])
    torch._dynamo.reset()  # noqa: SLF001 - graphs of other methods do not count
    counters.clear()
    logits, num_compiled = [], []
    for images in batches:
        logits.append(methods["reduce-overhead"].predict(as_floats(images)).cpu())
        num_compiled.append(counters["stats"]["unique_graphs"])
    distance = ((torch.cat(logits) - eager).norm() / eager.norm()).item()
    yield Figure(what=f"{name}: distance of the logits to eager, of their norm", found=distance, asked=f"<= {_MOST}")
    yield Figure(
        what=f"{name}: graphs compiled after the second batch", found=num_compiled[-1] - num_compiled[1],
        asked="== 0", text=f"{num_compiled[-1]} in all",
    )  # fmt: skip
    if name in _TIMED and not plan.is_rehearsal:
        yield from _speeds(name, methods, batches[0], device)


def _method(name: str, plan: Plan, device: torch.device, size: int, mode: str) -> Method:
    network = small_network(plan, device, num_classes=_NUM_CLASSES)
    if mode != "off":
        compile_network(network, plan, mode)
    return method_of(
        name, network, num_classes=_NUM_CLASSES, image_size=plan.image_size, batch_size=size,
        **{"num_augmentations": 4} if name == "memo" else {},
    )  # fmt: skip


def _speeds(name: str, methods: Mapping[str, Method], images: torch.Tensor, device: torch.device) -> Iterator[Figure]:
    """Yield the speed of each mode of `compile` on a batch on the device; the modes take turns."""
    rates: dict[str, list[float]] = {mode: [] for mode in methods}
    clock = Clock(device)
    for turn in range(_NUM_TURNS + 1):
        for mode, method in methods.items():
            clock.synchronize()
            started = time.perf_counter()
            for _ in range(_NUM_TIMED):
                method.predict(as_floats(images))
            clock.synchronize()
            if turn:  # the first turn warms up
                rates[mode].append(_NUM_TIMED / (time.perf_counter() - started))
    for mode, found in rates.items():
        yield median(f"{name}, compile {mode}", found, unit="batches/s")
