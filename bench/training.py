"""Training input (decoding, random crop, flip) against other loaders and the limit: `python -m bench.training`.

Images are 500 x 375 pixels, JPEG of quality 90; crops of 8 to 100 % of the area become 224 x 224. Loaders are measured
in turn, each in its own process, and each turn yields one ratio. DALI is left out if it is not installed. Whole
training steps and checkpoints follow; see `bench.steps`.
"""

import importlib.util
import os
from collections.abc import Callable
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench.crops import (
    BATCH_SIZE,
    IMAGE_SIZE,
    NUM_CORES,
    Measured,
    measure_dali,
    measure_decoding,
    measure_input,
    measure_torchvision,
)  # fmt: skip
from bench.figures import spread
from bench.steps import show_steps
from tta_pipeline.benchmarks.shard_settings import ShardSettings
from tta_pipeline.domain.cells import CLEAN
from tta_pipeline.extras.loader_bench.synthetic_photographs import make_jpeg_tree
from tta_pipeline.shards.write_cell import shard_split
from tta_pipeline.util.processes import Workers

REPEATS = int(os.environ.get("BENCH_REPEATS", "5"))
NUM_IMAGES = int(os.environ.get("BENCH_IMAGES", "2048"))
WORKER_COUNTS = (1, 2, 4)
"""Numbers of workers to try for torchvision; the fastest one counts."""


def main() -> None:
    """Make the images, measure, and print a table."""
    root = Path(os.environ.get("TTA_DATA_ROOT", "data")) / "bench" / f"training_{NUM_IMAGES}"
    images = make_jpeg_tree(root / "images", num_images=NUM_IMAGES, size=500, height=375, quality=90)
    shards = root / "shards"
    shard_split(images, shards, cell=CLEAN, settings=ShardSettings(num_shards=8), benchmark_name="bench")
    turns = [_turn(images, shards) for _ in range(REPEATS + 1)][1:]  # the first turn warms up
    table = Table(
        title=f"Crops of {IMAGE_SIZE} px, batches of {BATCH_SIZE}, {NUM_CORES} cores: medians \\[range]", box=None
    )
    for name in ("what", "images/s", "ours", "ratio", "CPU us an image", "ours", "ratio", "asked"):
        table.add_column(name)
    asked = {FLOATS: ">= 3", "DALI": "> 1"}
    for name in turns[0]:
        if name != OURS:
            _add_row(table, name, turns, asked.get(name, ""))
    Console(width=170).print(table)
    show_steps(root.parent)


OURS, FLOATS, BYTES, LIMIT = "ours", "torchvision, normalised floats", "torchvision, bytes", "decoding the rows alone"


def _turn(images: Path, shards: Path) -> dict[str, Measured]:
    """Measure each loader once, one after another."""
    ways: dict[str, list[tuple[Callable[..., Measured], tuple[object, ...]]]] = {
        OURS: [(measure_input, (shards,))],
        FLOATS: [(measure_torchvision, (images, count, True)) for count in WORKER_COUNTS],
        BYTES: [(measure_torchvision, (images, count, False)) for count in WORKER_COUNTS],
        LIMIT: [(measure_decoding, (shards,))],
    }
    if importlib.util.find_spec("nvidia") and importlib.util.find_spec("nvidia.dali"):
        ways["DALI"] = [(measure_dali, (images,))]
    fastest = {}
    for name, tries in ways.items():
        with Workers(1) as workers:
            found = [workers.submit(measure, *arguments).result() for measure, arguments in tries]
        fastest[name] = max(found, key=lambda each: each.images_per_s)
        Console(stderr=True).print(f"{name}: {fastest[name]}")
    return fastest


def _add_row(table: Table, name: str, turns: list[dict[str, Measured]], asked: str) -> None:
    theirs, ours = [turn[name] for turn in turns], [turn[OURS] for turn in turns]
    speeds = [mine.images_per_s / other.images_per_s for mine, other in zip(ours, theirs, strict=True)]
    costs = [other.cpu_us / mine.cpu_us for mine, other in zip(ours, theirs, strict=True)]
    table.add_row(
        name,
        spread([each.images_per_s for each in theirs]),
        spread([each.images_per_s for each in ours]),
        spread(speeds, digits=2),
        spread([each.cpu_us for each in theirs]),
        spread([each.cpu_us for each in ours]),
        spread(costs, digits=2),
        asked,
    )


if __name__ == "__main__":
    main()
