"""Methods that read only features: one shared forward pass of the frozen network, against one pass for each method.

In both cases, the pixels of the cell are decoded already, and everything computes in one thread.
"""

import os
import time
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from rich.console import Console
from rich.table import Table

from bench.figures import spread
from bench.steps import resnet20
from tta_pipeline.benchmarks.experiment_specs import Experiment
from tta_pipeline.benchmarks.shard_settings import ShardSettings
from tta_pipeline.evaluation.evaluator import Evaluator
from tta_pipeline.evaluation.open_stream import open_stream
from tta_pipeline.extras.loader_bench.synthetic_photographs import NUM_CLASSES, make_jpeg_tree
from tta_pipeline.loading.decoded_cache import DecodedCache
from tta_pipeline.models.loaded_model import LoadedModel
from tta_pipeline.shards.write_cell import shard_split
from tta_pipeline.util.partitions import CLEAN

REPEATS = int(os.environ.get("BENCH_REPEATS", "5"))
NUM_IMAGES = int(os.environ.get("BENCH_IMAGES", "2000"))
METHODS = ("source", "lame", "t3a")
SIZE = 32


def main() -> None:
    """Measure in turns, and print a table."""
    torch.set_num_threads(1)
    root = Path(os.environ.get("TTA_DATA_ROOT", "data")) / "bench" / f"features_{NUM_IMAGES}"
    images = make_jpeg_tree(root / "images", num_images=NUM_IMAGES, size=SIZE)
    shards = root / "shards"
    shard_split(images, shards, cell=CLEAN, settings=ShardSettings(num_shards=4), benchmark_name="bench")
    three, one = [], []
    for turn in range(REPEATS + 1):
        apart = _seconds_apart(shards)
        together, again = _seconds_together(shards)
        if turn:
            three.append(sum(apart.values()) / together)
            one.append(apart["source"] / again)
    table = Table(
        title=f"{NUM_IMAGES:,} images of {SIZE} px, ResNet-20: medians \\[range] of {REPEATS} turns", box=None
    )
    for name in ("what", "times faster", "asked"):
        table.add_column(name)
    table.add_row(", ".join(METHODS), spread(three, digits=2), ">= 2.5 (3 is the limit)")
    table.add_row("source, features kept", spread(one, digits=2), ">= 5")
    Console(width=120).print(table)


def _seconds_apart(shards: Path) -> dict[str, float]:
    """Return the seconds of each method by itself, from decoded pixels."""
    with TemporaryDirectory() as folder:
        cells = DecodedCache(folder=Path(folder), limit_bytes=2**30)
        _evaluate("source", shards, cells, keeps=False)  # decodes
        return {method: _evaluate(method, shards, cells, keeps=False) for method in METHODS}


def _seconds_together(shards: Path) -> tuple[float, float]:
    """Return the seconds of all methods, the first of which stores features, and of the first method run again."""
    with TemporaryDirectory() as folder:
        cells = DecodedCache(folder=Path(folder), limit_bytes=2**30)
        _evaluate("source", shards, cells, keeps=False)  # decodes
        together = sum(_evaluate(method, shards, cells, keeps=True) for method in METHODS)
        return together, _evaluate("source", shards, cells, keeps=True)


def _evaluate(method: str, shards: Path, cells: DecodedCache, *, keeps: bool) -> float:
    """Return the seconds from the opened shards to the result."""
    evaluator = Evaluator(
        experiment=Experiment(model="resnet20", method=method, preset="cifar", batch_size=200),
        model=_model(),
        image_size=SIZE,
        device=torch.device("cpu"),
        num_threads=1,
        open_pixels=cells.open_pixels,
        kept_in=cells if keeps else None,
    )
    opened = open_stream([shards])
    evaluator.start(opened.manifests[0], seed=0)
    started = time.perf_counter()
    evaluator.evaluate(opened, lambda _: None, segment=("clean", 0))
    return time.perf_counter() - started


def _model() -> LoadedModel:
    torch.manual_seed(0)
    state = resnet20().state_dict()
    return LoadedModel(
        name="resnet20", make_network=partial(_network, state), num_classes=NUM_CLASSES, weights="random",
        weights_sha256="0" * 64, mean=(0.5,) * 3, std=(0.25,) * 3, architecture="ResNet-20",
    )  # fmt: skip


def _network(state: dict[str, torch.Tensor]) -> torch.nn.Module:
    network = resnet20()
    network.load_state_dict(state)
    return network


if __name__ == "__main__":
    main()
