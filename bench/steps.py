"""Training fed from shards against the same steps on batches in memory, and the cost of a checkpoint.

`python -m bench.training` shows these figures after its own, `python -m bench.steps` shows only them. The network
computes in one thread; another thread decodes images.
"""

import os
import resource
import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import torch
import torchvision
from rich.console import Console
from rich.table import Table
from torch import nn
from torchvision.models.resnet import BasicBlock

from bench.figures import spread
from tta_pipeline.benchmarks.shard_settings import ShardSettings
from tta_pipeline.benchmarks.training_recipe import Recipe, TrainingInputSettings
from tta_pipeline.domain.cells import CLEAN
from tta_pipeline.extras.loader_bench.synthetic_photographs import NUM_CLASSES, make_jpeg_tree
from tta_pipeline.extras.training.checkpoints import Checkpoints
from tta_pipeline.extras.training.input import TrainingInput
from tta_pipeline.extras.training.learner import Learner
from tta_pipeline.loading.reader import Batch
from tta_pipeline.shards.shard_set import ShardSet
from tta_pipeline.shards.write_cell import shard_split

REPEATS = int(os.environ.get("BENCH_REPEATS", "5"))
BATCH_SIZE = 64
NUM_BATCHES = int(os.environ.get("BENCH_BATCHES", "16"))
NUM_SPARE = 8
"""Number of unmeasured batches at the end of an epoch, so that decoding runs ahead until the last measured batch."""
RECIPE = Recipe(optimizer="sgd", lr=0.1, weight_decay=5e-4, schedule="cosine", batch_size=BATCH_SIZE, epochs=200)


@dataclass(frozen=True, kw_only=True)
class Spent:
    """Time of some steps."""

    wall_s: float
    cpu_s: float
    """CPU time of the process, including decoding threads."""


def main() -> None:
    """Measure, and print a table."""
    show_steps(Path(os.environ.get("TTA_DATA_ROOT", "data")) / "bench")


def show_steps(root: Path) -> None:
    """Measure each network, and print a table; images, shards and checkpoints are written under *root*."""
    torch.set_num_threads(1)
    table = Table(title=f"Training, batches of {BATCH_SIZE}: medians \\[range]", box=None)
    for name in (
        "network",
        "ms per step in memory",
        "fed: wall",
        "fed: CPU",
        "asked",
        "input alone, CPU ms per batch",
        "of a step",
        "checkpoint s",
        "of 300 s",
        "asked",
    ):
        table.add_column(name)
    for name, network, size in (("ResNet-20", resnet20(), 32), ("ResNet-18", resnet18(), 64)):
        source, learner = _source(root, size), _learner(network)
        turns = list(end_to_end(source, _step_of(learner), num_batches=NUM_BATCHES))
        input_s = list(_input_seconds(source))
        step_s = statistics.median(resident.cpu_s / NUM_BATCHES for _, resident in turns)
        saved_s = list(checkpoint_seconds(learner, root / "checkpoints"))
        table.add_row(
            f"{name}, {size} px",
            spread([1000 * resident.wall_s / NUM_BATCHES for _, resident in turns]),
            spread([resident.wall_s / fed.wall_s for fed, resident in turns], digits=3),
            spread([resident.cpu_s / fed.cpu_s for fed, resident in turns], digits=3),
            ">= 0.95",
            spread([1000 * each for each in input_s], digits=1),
            f"{statistics.median(input_s) / step_s:.2%}",
            spread(saved_s, digits=3),
            f"{statistics.median(saved_s) / RECIPE.checkpoint_s:.3%}",
            "<= 1 %",
        )
    Console(width=170).print(table)


def end_to_end(
    source: TrainingInput, step: Callable[[Batch], None], *, num_batches: int, repeats: int = REPEATS
) -> Iterator[tuple[Spent, Spent]]:
    """Yield, for each turn, the time of *num_batches* steps fed by *source*, and of as many on batches in memory.

    Args:
        source: Input of a training, whose epoch has more than *num_batches* + 1 batches.
        step: One step of the training.
        num_batches: Number of batches to measure in each turn.
        repeats: Number of turns after a warm-up.
    """
    resident = [Batch(batch.images.clone(), *batch[1:]) for batch in islice(source.epoch(0), num_batches)]
    for turn in range(repeats + 1):
        fed = source.epoch(turn)
        step(next(fed))
        fed_spent = _time_steps(step, islice(fed, num_batches))
        fed.close()  # type: ignore[attr-defined] # a generator: its threads end before the next measurement
        resident_spent = _time_steps(step, resident)
        if turn:
            yield fed_spent, resident_spent


def _input_seconds(source: TrainingInput) -> Iterator[float]:
    """Yield the CPU time of a batch of *source* alone, in each of several epochs.

    It varies less than the difference between two trainings, of whose time it is a small part.
    """
    for turn in range(REPEATS + 1):
        spent = _time_steps(lambda _: None, source.epoch(turn))
        if turn:
            yield spent.cpu_s / len(source.batch_sizes)


def checkpoint_seconds(learner: Learner, folder: Path) -> Iterator[float]:
    """Yield the times of several checkpoints, which contain the best weights too, as in a training."""
    checkpoints = Checkpoints(folder=folder, fingerprint=64 * "0")
    for _ in range(2 * REPEATS):
        started = time.perf_counter()
        checkpoints.save({"course": {"best": learner.weights()}, "learner": learner.state()})
        yield time.perf_counter() - started
    checkpoints.remove()


def resnet20() -> nn.Module:
    """Return the ResNet-20 of He et al. (2016), section 4.2, but with projections in its two wider shortcuts."""
    layers: list[nn.Module] = [nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU()]
    for before, width in ((16, 16), (16, 32), (32, 64)):
        stride = width // before
        wider = nn.Sequential(nn.Conv2d(before, width, 1, stride, bias=False), nn.BatchNorm2d(width))
        layers += [BasicBlock(before, width, stride, wider if stride > 1 else None)]
        layers += [BasicBlock(width, width) for _ in range(2)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, NUM_CLASSES))


def resnet18() -> nn.Module:
    """Return torchvision's ResNet-18 with random weights."""
    network: nn.Module = torchvision.models.resnet18(num_classes=NUM_CLASSES)
    return network


def _source(root: Path, size: int) -> TrainingInput:
    num_images = BATCH_SIZE * (NUM_BATCHES + 1 + NUM_SPARE)
    folder = root / f"steps_{size}_{num_images}"
    images = make_jpeg_tree(folder / "images", num_images=num_images, size=size)
    shard_split(images, folder / "shards", cell=CLEAN, settings=ShardSettings(num_shards=4), benchmark_name="bench")
    return TrainingInput(
        shard_set=ShardSet.open(folder / "shards"),
        settings=TrainingInputSettings(augmentation="simple"),
        image_size=size,
        batch_size=BATCH_SIZE,
        seed=0,
        num_threads=1,
    )


def _learner(network: nn.Module) -> Learner:
    return Learner(
        network.train(), RECIPE, num_classes=NUM_CLASSES, steps_per_epoch=NUM_BATCHES, device=torch.device("cpu")
    )


def _step_of(learner: Learner) -> Callable[[Batch], None]:
    def step(batch: Batch) -> None:
        learner.learn(batch.images, batch.labels, seed=0, num_samples=len(batch.labels))

    return step


def _time_steps(step: Callable[[Batch], None], batches: Iterable[Batch]) -> Spent:
    cpu_s, started = _cpu_s(), time.perf_counter()
    for batch in batches:
        step(batch)
    return Spent(wall_s=time.perf_counter() - started, cpu_s=_cpu_s() - cpu_s)


def _cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


if __name__ == "__main__":
    main()
