"""Shared parts of the sections: the device, networks, methods, streams, and timed passes."""

import copy
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import cache

import torch
from torch import nn
from torchvision import models
from torchvision.models.resnet import BasicBlock

from bench.gpu_day.lines import Figure
from bench.gpu_day.plan import Plan
from bench.methods import SETTINGS
from tta_pipeline.benchmarks.protocols.driver import ProtocolDriver
from tta_pipeline.data.datasets.dataset_files import shipped_sets
from tta_pipeline.domain.cells import Cell, grid_of_cells
from tta_pipeline.domain.locations import Locations
from tta_pipeline.errors import PipelineError
from tta_pipeline.evaluation.device.leases import leased_device
from tta_pipeline.evaluation.machine import default_decode_threads
from tta_pipeline.evaluation.one_pass import Pass, run_pass
from tta_pipeline.loading.device import pins_memory
from tta_pipeline.loading.reader import Stream
from tta_pipeline.loading.stream_order import stored_order
from tta_pipeline.methods import METHODS, build
from tta_pipeline.methods.method import Method
from tta_pipeline.models.normalized import Normalized
from tta_pipeline.shards.shard_set import ShardSet

BENCHMARK = "gpu_day"
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
NOT_HERE = "not here: this kind of device has none"
OF_VIEWS = ("memo", "ttaug", "cotta")
"""Methods that run each image through the network dozens of times."""
ON_ANY_NETWORK = tuple(name for name, entry in METHODS.items() if entry.needs == "any")
"""Methods that run on any network."""
FEW: Mapping[str, Mapping[str, object]] = {
    "memo": {"num_augmentations": 4},
    "ttaug": {"num_augmentations": 4},
    "cotta": {"num_augmentations": 4, "anchor_threshold": 1.0},
    "rotta": {"memory_size": 8, "update_frequency": 4},
    "adacontrast": {"queue_size": 64, "min_seen": 4, "num_neighbors": 2},
}
"""Settings under which few images and views exercise every part of a method."""


@contextmanager
def lease_device(plan: Plan) -> Iterator[torch.device]:
    """Lease the device of the plan.

    Raises:
        RuntimeError: this machine has no accelerator, and this is no rehearsal.
    """
    with leased_device(plan.device, lambda _: None) as device:
        if device.type == "cpu" and not plan.is_rehearsal:
            raise RuntimeError("found no accelerator; expected a GPU: run on a machine with one, or with --rehearse")
        yield device


def cells_of(plan: Plan) -> tuple[Cell, ...]:
    """Return the cells of the day's benchmark; all have the same images."""
    return grid_of_cells(shipped_sets()["imagenet_c"].in_mean, (5,))[: plan.num_cells]


def shards_of(plan: Plan) -> ShardSet:
    """Return the shards of the first cell."""
    return ShardSet.open(Locations(root=plan.data).shards(BENCHMARK, cells_of(plan)[0]))


def plain_network(architecture: str, num_classes: int) -> nn.Module:
    """Return an architecture of torchvision with fixed random weights: speed does not depend on weights."""
    network = copy.deepcopy(_drawn_network(architecture, num_classes))
    torch.manual_seed(0)  # what is drawn next does not depend on whether the weights were drawn just now
    return network


@cache  # drawing the weights of a ResNet-50 takes as long as many batches
def _drawn_network(architecture: str, num_classes: int) -> nn.Module:
    torch.manual_seed(0)
    network: nn.Module = models.get_model(architecture, num_classes=num_classes)
    return network


def network_of(plan: Plan, device: torch.device, *, compile_mode: str | None = None) -> nn.Module:
    """Return the plan's network as in an evaluation: normalising, channels-last, compiled if *compile_mode* is set."""
    network: nn.Module = Normalized(plain_network(plan.architecture, plan.num_classes), mean=MEAN, std=STD)
    network = network.eval().to(device).to(memory_format=torch.channels_last)
    if compile_mode is not None:
        compile_network(network, plan, compile_mode)
    return network


def compile_network(network: nn.Module, plan: Plan, mode: str) -> None:
    """Compile *network* as an evaluation does; a rehearsal does so without the compiler of kernels."""
    if plan.is_rehearsal:
        network.compile(backend="eager", dynamic=False)
    else:
        network.compile(mode=mode, dynamic=False)


def small_network(plan: Plan, device: torch.device, *, num_classes: int) -> nn.Module:
    """Return a network for comparisons of methods, small enough for the CPU."""
    if plan.is_rehearsal:
        torch.manual_seed(0)
        network: nn.Module = nn.Sequential(
            nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), BasicBlock(16, 16), BasicBlock(16, 16),
            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, num_classes),
        )  # fmt: skip
    else:
        network = plain_network("resnet18", num_classes)
    return Normalized(network, mean=MEAN, std=STD).eval().to(device).to(memory_format=torch.channels_last)


def method_of(
    name: str, network: nn.Module, *, num_classes: int, image_size: int, batch_size: int, **settings: object
) -> Method:
    """Return the method with filters that let every sample pass, and random source data if it needs them."""
    device = next(network.parameters()).device
    draws = torch.Generator().manual_seed(3)
    source_data = [
        (torch.rand(len(labels), 3, image_size, image_size, generator=draws).to(device), labels.to(device))
        for labels in torch.arange(num_classes).split(max(2, batch_size))
    ]
    return build(
        name,
        network,
        num_classes=num_classes,
        source_data=source_data if METHODS[name].source_data != "unused" else None,
        **{**SETTINGS.get(name, {}), **settings},
    )


def method_of_plan(plan: Plan, name: str, device: torch.device, *, compile_mode: str | None = None) -> Method:
    """Return the method on the network of the plan; in a rehearsal it makes few views."""
    return method_of(
        name, network_of(plan, device, compile_mode=compile_mode), num_classes=plan.num_classes,
        image_size=plan.image_size, batch_size=plan.small_batch,
        **FEW.get(name, {}) if plan.is_rehearsal else {},
    )  # fmt: skip


def stream_of(
    plan: Plan, device: torch.device, *, batch_size: int, num_images: int, num_threads: int | None = None
) -> Stream:
    """Return a stream of the first images of the first cell, as an evaluation reads them."""
    shard_set = shards_of(plan)
    order = stored_order(shard_set.index)
    return Stream(
        shard_set=shard_set,
        order=replace(order, indices=order.indices[:num_images]),
        batch_size=batch_size,
        image_size=plan.image_size,
        num_threads=default_decode_threads() if num_threads is None else num_threads,
        pin_memory=pins_memory(device),
    )


def run_once(method: Method, stream: Stream, device: torch.device) -> Pass:
    """Run the method over the stream once, in bf16."""
    return run_pass(ProtocolDriver(method), stream, device=device, precision="bf16", advance=lambda _: None)


def pixels(plan: Plan, device: torch.device, *, batch_size: int) -> torch.Tensor:
    """Return a random batch on the device, uint8 (B, H, W, 3)."""
    size = (batch_size, plan.image_size, plan.image_size, 3)
    return torch.randint(0, 256, size, dtype=torch.uint8, generator=torch.Generator().manual_seed(4)).to(device)


def median(what: str, values: Iterable[float], *, unit: str = "", asked: str = "", text: str = "") -> Figure:
    """Return the figure of a speed from several measurements."""
    found = list(values)
    return Figure(
        what=what, found=statistics.median(found), low=min(found), high=max(found), unit=unit, asked=asked,
        is_speed=True, text=text,
    )  # fmt: skip


def figures_of_each(names: Iterable[str], figures: Callable[[str], Iterable[Figure]]) -> Iterator[Figure]:
    """Yield the figures of each name; if one of them raises, its error becomes its figure, and the others follow."""
    for name in names:
        try:
            yield from figures(name)
        except (RuntimeError, ValueError, PipelineError) as error:  # torch raises the first two
            yield Figure(
                what=name, why_not=f"{type(error).__name__}: {error}".strip().partition("\n")[0], is_failure=True
            )
