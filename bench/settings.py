"""Speed-up by memory layout, bf16 and `torch.compile` on this CPU: `python -m bench.settings`.

`source` and `tent` on ResNet-18, 64x64, batches of 64 in memory. The settings are measured in turn, and each turn gives
one ratio to an experiment's default settings: channels_last, fp32, not compiled. `python -m bench.methods` shows this
table after its own.
"""

import os
import time
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass

import torch
from rich.console import Console
from rich.table import Table
from torchvision.models import resnet18

from bench.figures import spread
from tta_pipeline.methods import build
from tta_pipeline.methods.method import Method

NUM_CLASSES, BATCH_SIZE, IMAGE_SIZE = 200, 64, 64
NUM_BATCHES = int(os.environ.get("BENCH_BATCHES", "4"))
REPEATS = int(os.environ.get("BENCH_REPEATS", "3"))


@dataclass(frozen=True, kw_only=True)
class Way:
    """Settings of a forward pass."""

    channels_last: bool = True
    bf16: bool = False
    is_compiled: bool = False


WAYS: Mapping[str, Way] = {
    "as an experiment is by default": Way(),
    "contiguous": Way(channels_last=False),
    "precision: bf16": Way(bf16=True),
    "compile: default": Way(is_compiled=True),
    "both": Way(bf16=True, is_compiled=True),
}


def main() -> None:
    """Measure each method, and print a table."""
    instructions = torch.backends.cpu.get_cpu_capability()
    work = f"ResNet-18, {IMAGE_SIZE}x{IMAGE_SIZE}, batch {BATCH_SIZE}"
    table = Table(title=f"Settings on this CPU ({instructions}), {work}: times faster, medians \\[range]", box=None)
    table.add_column("setting")
    columns = []
    for name in ("source", "tent"):
        table.add_column(name)
        columns.append(_times_faster(name))
    for way in WAYS:
        table.add_row(way, *(column[way] for column in columns))
    Console(width=140).print(table)


def _times_faster(name: str) -> dict[str, str]:
    methods = {title: _method(name, way) for title, way in WAYS.items()}
    seconds: dict[str, list[float]] = {title: [] for title in WAYS}
    for turn in range(REPEATS + 1):  # the first compiles
        for title, way in WAYS.items():
            spent = _pass_s(methods[title], way)
            if turn:
                seconds[title].append(spent)
    usual = seconds[next(iter(WAYS))]
    return {
        title: spread([mine / each for mine, each in zip(usual, seconds[title], strict=True)], digits=2)
        for title in WAYS
    }


def _method(name: str, way: Way) -> Method:
    torch.manual_seed(1)
    network = resnet18(num_classes=NUM_CLASSES).eval()
    network.to(memory_format=_layout(way))  # type: ignore[call-overload] # torch's stub has no layout
    if way.is_compiled:
        network.compile(dynamic=False)
    return build(name, network, num_classes=NUM_CLASSES)


def _pass_s(method: Method, way: Way) -> float:
    generator = torch.Generator().manual_seed(0)
    size = (BATCH_SIZE, 3, IMAGE_SIZE, IMAGE_SIZE)
    batches = [torch.rand(size, generator=generator).to(memory_format=_layout(way)) for _ in range(NUM_BATCHES)]
    method.reset()
    started = time.perf_counter()
    with torch.autocast("cpu", torch.bfloat16, cache_enabled=False) if way.bf16 else nullcontext():
        for images in batches:
            method.predict(images)
    return time.perf_counter() - started


def _layout(way: Way) -> torch.memory_format:
    return torch.channels_last if way.channels_last else torch.contiguous_format


if __name__ == "__main__":
    main()
