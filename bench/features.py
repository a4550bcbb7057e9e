"""Methods that read only features: one shared forward pass of the frozen network, against one pass for each method.

In both cases, the pixels of the cell are decoded already, and everything computes in one thread. Methods for CLIP are
measured on open_clip's ViT-B-32 with random weights, against one method without kept features; those with crops have 4
views of each image.
"""

import os
import time
from copy import deepcopy
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from rich.console import Console
from rich.table import Table
from torch.nn.functional import normalize

from bench.figures import spread
from bench.steps import resnet20
from tta_pipeline.benchmarks.experiment_specs import Experiment
from tta_pipeline.benchmarks.shard_settings import ShardSettings
from tta_pipeline.domain.cells import CLEAN
from tta_pipeline.evaluation.evaluator import Evaluator
from tta_pipeline.evaluation.open_stream import open_stream
from tta_pipeline.extras.loader_bench.synthetic_photographs import NUM_CLASSES, make_jpeg_tree
from tta_pipeline.loading.decoded_cache import DecodedCache
from tta_pipeline.models.loaded_model import LoadedModel
from tta_pipeline.models.zero_shot_classifier import ZeroShotClassifier
from tta_pipeline.shards.write_cell import shard_split

REPEATS = int(os.environ.get("BENCH_REPEATS", "5"))
NUM_IMAGES = int(os.environ.get("BENCH_IMAGES", "2000"))
NUM_PHOTOGRAPHS = int(os.environ.get("BENCH_PHOTOGRAPHS", "200"))
METHODS = ("source", "lame", "t3a")
METHODS_OF_CLIP = ("zero_shot", "tda", "bca", "onzeta", "oga", "ecalp", "source", "lame", "t3a", "neo")
METHODS_OF_CROPS = ("zero", "mta", "tps")
NUM_VIEWS = 4
SIZE = 32
SIZE_OF_CLIP = 224


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
    _measure_clip(root.parent / f"features_of_clip_{NUM_PHOTOGRAPHS}")


def _measure_clip(root: Path) -> None:
    """Measure the time of several CLIP methods relative to one method, in turns, and print a table."""
    images = make_jpeg_tree(root / "images", num_images=NUM_PHOTOGRAPHS, size=SIZE_OF_CLIP)
    shards = root / "shards"
    shard_split(images, shards, cell=CLEAN, settings=ShardSettings(num_shards=1), benchmark_name="bench")
    model = _clip()
    found: dict[tuple[str, ...], list[float]] = {METHODS_OF_CLIP: [], METHODS_OF_CROPS: []}
    for _ in range(REPEATS):
        for methods, ratios in found.items():
            with TemporaryDirectory() as folder:
                cells = DecodedCache(folder=Path(folder), limit_bytes=2**30)
                _evaluate("source", shards, cells, keeps=False, model=model)  # decodes
                one = _evaluate(methods[0], shards, cells, keeps=False, model=model)
                together = sum(_evaluate(method, shards, cells, keeps=True, model=model) for method in methods)
                ratios.append(together / one)
    table = Table(
        title=f"{NUM_PHOTOGRAPHS:,} images of {SIZE_OF_CLIP} px, ViT-B-32: medians \\[range] of {REPEATS} turns",
        box=None,
    )
    for name in ("methods", "times the time of the first alone", "asked"):
        table.add_column(name)
    for methods, ratios in found.items():
        table.add_row(", ".join(methods), spread(ratios, digits=2), "<= 1.5")
    Console(width=160).print(table)


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


def _evaluate(
    method: str, shards: Path, cells: DecodedCache, *, keeps: bool, model: LoadedModel | None = None
) -> float:
    """Return the seconds from the opened shards to the result."""
    evaluator = Evaluator(
        experiment=Experiment(
            model="network",
            method=method,
            preset="cifar",
            batch_size=200 if model is None else 64,
            hyperparameters={"num_views": NUM_VIEWS} if method in METHODS_OF_CROPS else {},
        ),
        model=model or _model(),
        image_size=SIZE if model is None else SIZE_OF_CLIP,
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


def _clip() -> LoadedModel:
    import open_clip

    torch.manual_seed(0)
    tower = open_clip.create_model("ViT-B-32").visual
    num_classes = min(NUM_CLASSES, NUM_PHOTOGRAPHS)
    texts = normalize(torch.randn(num_classes, tower.output_dim), dim=1)
    network = ZeroShotClassifier(tower, texts, scale=100.0).eval()
    return LoadedModel(
        name="clip", make_network=partial(deepcopy, network), num_classes=num_classes, weights="random",
        weights_sha256="0" * 64, mean=(0.5,) * 3, std=(0.25,) * 3, architecture="ViT-B-32",
    )  # fmt: skip


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
