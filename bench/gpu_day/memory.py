"""Section of device memory: its growth over a pass, and the error when it is too small."""

import re
from collections.abc import Iterator
from dataclasses import replace

import torch

from bench.gpu_day.lines import Figure
from bench.gpu_day.passes import NOT_HERE, lease_device, method_of_plan, run_once, stream_of
from bench.gpu_day.plan import Plan
from tta_pipeline.benchmarks.protocols.driver import ProtocolDriver
from tta_pipeline.errors import EvaluationError
from tta_pipeline.evaluation.device.memory import peak_memory_gib, release_memory, reset_peak_memory
from tta_pipeline.evaluation.one_pass import SCORED_TOGETHER, run_pass

_NUM_BATCHES = 20


def memory(plan: Plan) -> Iterator[Figure]:
    """Yield the growth of live memory, the peak, and whether the error names a batch size that fits."""
    with lease_device(plan) as device:
        yield from _growth(plan, device)
        yield _too_large(plan, device)


def _growth(plan: Plan, device: torch.device) -> Iterator[Figure]:
    method = method_of_plan(plan, "source", device)
    stream = stream_of(plan, device, batch_size=plan.batch_size, num_images=_NUM_BATCHES * plan.batch_size)
    live: list[int] = []
    num_probabilities = plan.batch_size * plan.num_classes
    num_together = -(-SCORED_TOGETHER // num_probabilities)

    def note(_: int) -> None:
        if device.type != "cpu":
            unscored_bytes = 4 * num_probabilities * ((len(live) + 1) % num_together)
            live.append(torch.get_device_module(device).memory_allocated(device) - unscored_bytes)

    reset_peak_memory(device)
    run_pass(ProtocolDriver(method), stream, device=device, precision="bf16", advance=note)
    what = "growth of live memory a batch, of a batch's pixels"
    if live:
        pixel_bytes = plan.batch_size * plan.image_size**2 * 3
        steady = live[3:-1]  # no batch is copied ahead during the last one
        yield Figure(what=what, found=(steady[-1] - steady[0]) / (len(steady) - 1) / pixel_bytes, asked="<= 0.01")
        yield Figure(what="peak memory of source", found=peak_memory_gib(device), unit="GiB")
    else:
        yield Figure(what=what, asked="<= 0.01", why_not="not here: the memory of a CPU is not measured")


def _too_large(plan: Plan, device: torch.device) -> Figure:
    """Let tent run out of a small share of the memory, so that the whole device need not be filled."""
    what = "an error that names the batch size that fits, and that size fits"
    module = torch.get_device_module(device)
    if not hasattr(module, "set_per_process_memory_fraction"):
        return Figure(what=what, asked="== 1", why_not=NOT_HERE)
    batch_size = 4 * plan.batch_size
    release_memory(device)
    module.set_per_process_memory_fraction(
        plan.little_gib * 2**30 / module.get_device_properties(device).total_memory, device
    )
    stream = stream_of(plan, device, batch_size=batch_size, num_images=batch_size)
    method = method_of_plan(plan, "tent", device)
    try:
        run_once(method, stream, device)
    except EvaluationError as error:
        message = str(error)
    else:
        return Figure(what=what, found=0, asked="== 1", text=f"found memory for {batch_size} in {plan.little_gib} GiB")
    named = re.search(r"set batch_size to (\d+)", message)
    if named:
        run_once(method, replace(stream, batch_size=int(named[1])), device)
    return Figure(what=what, found=bool(named), asked="== 1", text=message)
