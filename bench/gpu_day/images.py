"""Section that makes images, shards and weights for the other sections."""

import hashlib
import os
import time
from collections.abc import Iterator

from safetensors.torch import save_file

from bench.gpu_day.lines import Figure
from bench.gpu_day.passes import BENCHMARK, cells_of, plain_network
from bench.gpu_day.plan import Plan
from tta_pipeline.benchmarks.shard_settings import ShardSettings
from tta_pipeline.data.labels.class_map import label_order, pin_class_map
from tta_pipeline.domain.locations import Locations
from tta_pipeline.extras.loader_bench.synthetic_photographs import make_jpeg_tree
from tta_pipeline.shards.write_cell import shard_split


def images(plan: Plan) -> Iterator[Figure]:
    """Make the files that do not exist yet."""
    locations, cells = Locations(root=plan.data), cells_of(plan)
    tree = make_jpeg_tree(plan.folder / "tree", num_images=plan.num_images, size=plan.image_size, copies=plan.copies)
    classes = label_order(path.name for path in tree.iterdir() if path.is_dir())
    pin_class_map(locations.class_map(BENCHMARK), lambda: classes)
    started = time.perf_counter()
    for cell in cells:
        shard_split(
            tree, locations.shards(BENCHMARK, cell), cell=cell, settings=ShardSettings(num_shards=plan.num_shards),
            benchmark_name=BENCHMARK, jobs=min(16, len(os.sched_getaffinity(0))),
        )  # fmt: skip
    weights = plan.folder / "weights.safetensors"
    save_file(plain_network(plan.architecture, plan.num_classes).state_dict(), weights)
    num_samples = len(cells) * plan.num_images * plan.copies
    seconds = time.perf_counter() - started
    yield Figure(what="images in shards, written and read back", found=num_samples / seconds, unit="images/s")
    yield Figure(what="weights", text=f"sha256 {hashlib.sha256(weights.read_bytes()).hexdigest()}")
