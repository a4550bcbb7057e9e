"""CUDA graphs (`compile: reduce-overhead`): the predictions of eager code, and nothing is compiled again."""

from collections.abc import Iterator

import torch
from torch._dynamo.utils import counters

from bench.gpu_day.lines import Figure
from bench.gpu_day.passes import compiled, device_of, each, method_of, pixels, small_network
from bench.gpu_day.plan import Plan
from tta_pipeline.evaluation.accelerator import arithmetic
from tta_pipeline.streaming.device import as_floats

_METHODS = ("source", "tent", "sar", "memo")
_NUM_BATCHES, _NUM_CLASSES = 4, 10
_MOST = 0.02
"""Distance of the logits, of their norm, that another order of the same sums may cause, over a few updates."""


def graphs(plan: Plan) -> Iterator[Figure]:
    """Compare each method with itself, eager."""
    if plan.is_rehearsal:
        yield Figure(what="CUDA graphs", why_not="not here: a rehearsal only traces, and runs what it traced eagerly")
    with device_of(plan) as device, arithmetic(device.type, "fp32"):
        yield from each(_METHODS, lambda name: _compared(name, plan, device))


def _compared(name: str, plan: Plan, device: torch.device) -> Iterator[Figure]:
    size = 2 if name == "memo" else plan.small_batch  # an image of MEMO has a step of its own
    batches = [pixels(plan, device, batch_size=size) for _ in range(_NUM_BATCHES)]
    found: list[list[torch.Tensor]] = []
    num_compiled: list[int] = []
    for mode in (None, "reduce-overhead"):
        network = small_network(plan, device, num_classes=_NUM_CLASSES)
        if mode:
            compiled(network, plan, mode)
        method = method_of(
            name, network, num_classes=_NUM_CLASSES, image_size=plan.image_size, batch_size=size,
            **{"num_augmentations": 4} if name == "memo" else {},
        )  # fmt: skip
        torch._dynamo.reset()  # noqa: SLF001 - what other methods compiled does not count
        counters.clear()
        logits = []
        for images in batches:
            logits.append(method.predict(as_floats(images)).cpu())
            num_compiled.append(counters["stats"]["unique_graphs"])
        found.append(logits)
    eager, captured = (torch.cat(logits) for logits in found)
    distance = ((captured - eager).norm() / eager.norm()).item()
    yield Figure(what=f"{name}: distance of the logits to eager, of their norm", found=distance, asked=f"<= {_MOST}")
    again = num_compiled[-1] - num_compiled[_NUM_BATCHES + 1]
    yield Figure(
        what=f"{name}: graphs compiled after the second batch", found=again, asked="== 0",
        text=f"{num_compiled[-1]} in all",
    )  # fmt: skip
