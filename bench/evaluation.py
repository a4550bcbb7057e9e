"""A range of cells evaluated by Dagster, against a bare loop over the same batches: `python -m bench.evaluation`.

Both run ResNet-18 with the same random weights: speed does not depend on the weights.
"""

import hashlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from rich.console import Console
from safetensors.torch import save_file
from torchvision.models import resnet18

from tta_pipeline.data.datasets.dataset_files import shipped_sets
from tta_pipeline.domain.cells import Cell, grid_of_cells
from tta_pipeline.extras.loader_bench.synthetic_photographs import make_jpeg_tree
from tta_pipeline.loading.reader import Stream
from tta_pipeline.loading.stream_order import stored_order
from tta_pipeline.models.normalized import Normalized
from tta_pipeline.shards.shard_set import ShardSet

NUM_CELLS = int(os.environ.get("BENCH_CELLS", "15"))
"""Number of cells, out of 75; a run over all takes six minutes on two cores, and the bare loop takes as long."""
IMAGES_PER_CELL = 2000
REPEATS = int(os.environ.get("BENCH_REPEATS", "3"))
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
BENCHMARK = """
title: Range of cells
subset: true
images: {{kind: folder, root: {root}/source}}
corruptions: [{corruptions}]
image_size: 64
shards: {{num_shards: 2}}
models:
  r18: {{kind: checkpoint, architecture: resnet18, path: {root}/r18.safetensors, sha256: {sha256},
        mean: {mean}, std: {std}}}
experiments:
  source: {{model: r18, method: source}}
"""


def main() -> None:
    """Make the cells, run both in turn, and print the ratio."""
    data = Path(os.environ.get("TTA_DATA_ROOT", "data")).absolute() / "bench"
    tree = make_jpeg_tree(data / "tree_64", num_images=20_000, size=64)
    dataset = shipped_sets()["imagenet_c"]
    chosen = grid_of_cells(dataset.in_mean[: -(-NUM_CELLS // len(dataset.severities))], dataset.severities)
    with tempfile.TemporaryDirectory(dir=data) as folder:
        root = Path(folder)
        _prepare(root, tree, chosen)
        loops_s, ranges_s, startups_s = [], [], []
        for _ in range(REPEATS):
            loops_s.append(_bare_loop_s(root, chosen))
            startups_s.append(_dagster_s(root, chosen, "false"))  # all finished, or none yet
            ranges_s.append(_dagster_s(root, chosen, "true"))
    _print(len(chosen), loops_s, ranges_s, startups_s)


def _prepare(root: Path, tree: Path, chosen: tuple[Cell, ...]) -> None:
    images = sorted(tree.rglob("*.JPEG"))
    for number, cell in enumerate(chosen):
        step = len(images) // IMAGES_PER_CELL
        for image in images[number % step :: step]:
            link = root / "source" / cell.path / image.parent.name / image.name
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(image)
    torch.manual_seed(0)
    save_file(resnet18(num_classes=200).state_dict(), root / "r18.safetensors")
    sha256 = hashlib.sha256((root / "r18.safetensors").read_bytes()).hexdigest()
    corruptions = ", ".join(dict.fromkeys(cell.corruption for cell in chosen))
    text = BENCHMARK.format(root=root, corruptions=corruptions, sha256=sha256, mean=list(MEAN), std=list(STD))
    (root / "benchmarks").mkdir()
    (root / "benchmarks" / "range.yaml").write_text(text)
    _materialize(root, "range/tar_shards,range/shard_manifest,range/evaluation/source", chosen, "false")


def _dagster_s(root: Path, chosen: tuple[Cell, ...], force: str) -> float:
    started = time.perf_counter()
    _materialize(root, "range/evaluation/source", chosen, force)
    return time.perf_counter() - started


def _materialize(root: Path, select: str, chosen: tuple[Cell, ...], force: str) -> None:
    (root / "dagster").mkdir(exist_ok=True)
    config = {"ops": {"range__evaluation__source": {"config": {"force": json.loads(force)}}}}
    finished = subprocess.run(
        [
            Path(sys.executable).with_name("dagster"), "asset", "materialize", "-m", "tta_pipeline.definitions",
            "--select", select, "--partition-range", f"{chosen[0].key}...{chosen[-1].key}", "--config-json",
            json.dumps(config),
        ],
        env={**os.environ, "TTA_DATA_ROOT": str(root), "DAGSTER_HOME": str(root / "dagster")},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert finished.returncode == 0, finished.stderr[-3000:]


@torch.inference_mode()
def _bare_loop_s(root: Path, chosen: tuple[Cell, ...]) -> float:
    """Predict the batches of all cells from memory, and do nothing else."""
    network = resnet18(num_classes=200)
    model = Normalized(network, mean=MEAN, std=STD).eval().to(memory_format=torch.channels_last)
    taken_s = 0.0
    for cell in chosen:
        shard_set = ShardSet.open(root / "range" / "shards" / cell.path)
        stream = Stream(shard_set=shard_set, order=stored_order(shard_set.index), batch_size=64, image_size=64)
        batches = [batch.images.clone() for batch in stream]
        started = time.perf_counter()
        for images in batches:
            model(images.permute(0, 3, 1, 2).float().div_(255)).argmax(1)
        taken_s += time.perf_counter() - started
    return taken_s


def _print(num_cells: int, loops_s: list[float], ranges_s: list[float], startups_s: list[float]) -> None:
    startup_s = statistics.median(startups_s)
    ratios = [(whole - startup_s) / loop for whole, loop in zip(ranges_s, loops_s, strict=True)]
    Console(width=140).print(
        f"range of {num_cells} cells of {IMAGES_PER_CELL:,} images, ResNet-18, 64x64, batch 64: "
        f"{statistics.median(ranges_s):.1f} s with {startup_s:.1f} s of start-up (a run that finds all finished); "
        f"bare loop {statistics.median(loops_s):.1f} s\n"
        f"ratio without the start-up: {statistics.median(ratios):.3f} [{min(ratios):.3f}-{max(ratios):.3f}]"
        "      asked: <= 1.05"
    )


if __name__ == "__main__":
    main()
