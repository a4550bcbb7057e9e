"""Speed-up of each mode of `compile` on this CPU, for methods that adapt: `python -m bench.compiled`.

Batches of 64 are kept in memory. The networks are a ResNet-18 at 64x64 and a small network at 32x32, in one thread,
with filters that pass every sample. The modes take turns. Each turn is a stream that starts from the source model; the
first turn compiles, and is not counted.
"""

import os
import time
from collections.abc import Callable, Mapping

import torch
from rich.console import Console
from rich.table import Table
from torch import nn
from torch._dynamo.utils import counters
from torchvision.models import resnet18
from torchvision.models.resnet import BasicBlock

from bench.figures import spread
from bench.methods import SETTINGS
from tta_pipeline.methods import build
from tta_pipeline.methods.method import Method
from tta_pipeline.models.normalized import Normalized

NUM_CLASSES, BATCH_SIZE = 100, 64
NUM_BATCHES = int(os.environ.get("BENCH_BATCHES", "4"))
REPEATS = int(os.environ.get("BENCH_REPEATS", "5"))
METHODS = ("tent", "eata", "sar", "roid")
MODES = ("off", "default", "reduce-overhead")


def small_network() -> nn.Module:
    """Return a network of two residual blocks for small images."""
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), BasicBlock(16, 16), BasicBlock(16, 16),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, NUM_CLASSES),
    )  # fmt: skip


NETWORKS: Mapping[str, tuple[Callable[[], nn.Module], int]] = {
    "small, 32x32": (small_network, 32),
    "ResNet-18, 64x64": (lambda: resnet18(num_classes=NUM_CLASSES), 64),
}
"""Networks, each with the height and width of its images in pixels."""


def main() -> None:
    """Measure each network with each method, and print a table."""
    torch.set_num_threads(1)
    table = Table(title=f"compile on this CPU, batches of {BATCH_SIZE}: medians \\[range]", box=None)
    for column in (
        "network, method",
        "steps/s, off",
        *(f"{mode}, times faster" for mode in MODES[1:]),
        "recompiled",
    ):
        table.add_column(column)
    for network, (make, image_size) in NETWORKS.items():
        for name in METHODS:
            table.add_row(f"{network}, {name}", *_figures(name, make, image_size))
    Console(width=160).print(table)


def _figures(name: str, make: Callable[[], nn.Module], image_size: int) -> list[str]:
    torch._dynamo.reset()  # noqa: SLF001 - torch gives up if one function is compiled too often
    generator = torch.Generator().manual_seed(0)
    size = (BATCH_SIZE, 3, image_size, image_size)
    batches = [torch.rand(size, generator=generator).to(memory_format=torch.channels_last) for _ in range(NUM_BATCHES)]
    methods = {mode: _method(name, make, mode, batches[0]) for mode in MODES}
    seconds: dict[str, list[float]] = {mode: [] for mode in MODES}
    for turn in range(REPEATS + 1):
        for mode, method in methods.items():
            spent_s = _pass_s(method, batches)
            if turn:
                seconds[mode].append(spent_s)
        if not turn:
            counters.clear()
    rates = [NUM_BATCHES / spent_s for spent_s in seconds["off"]]
    gains = [[usual / mine for usual, mine in zip(seconds["off"], seconds[mode], strict=True)] for mode in MODES[1:]]
    return [
        spread(rates, digits=2),
        *(spread(each, digits=2) for each in gains),
        str(counters["stats"]["unique_graphs"]),
    ]


def _method(name: str, make: Callable[[], nn.Module], mode: str, clean: torch.Tensor) -> Method:
    torch.manual_seed(1)
    network = Normalized(make(), mean=(0.5,) * 3, std=(0.25,) * 3).eval().to(memory_format=torch.channels_last)
    if mode != "off":
        network.compile(mode=mode, dynamic=False)
    return build(
        name,
        network,
        num_classes=NUM_CLASSES,
        source_data=[(clean, torch.arange(len(clean)))],
        **SETTINGS.get(name, {}),
    )


def _pass_s(method: Method, batches: list[torch.Tensor]) -> float:
    method.reset()
    started = time.perf_counter()
    for images in batches:
        method.predict(images)
    return time.perf_counter() - started


if __name__ == "__main__":
    main()
