"""Cell, class map and settings for shards of real JPEG files, and functions that damage them."""

import os
from pathlib import Path

from tta_pipeline.benchmarks.shard_settings import ShardSettings
from tta_pipeline.data.labels.class_map import ClassMap
from tta_pipeline.domain.cells import Cell
from tta_pipeline.shards.shard_set import ShardSet
from tta_pipeline.util.progress import Progress

CELL = Cell(corruption="fog", severity=5)
CLASS_MAP = ClassMap(classes=("n01", "n02", "n03"))
LIMITS = ShardSettings(num_shards=3, seed=7)
QUIET = Progress(lambda _: None, what="test", total=0)


def flip(path: Path, position: int, bit: int = 0) -> None:
    """Flip a bit of a file in place and restore its times, so that only its bytes reveal the change."""
    status = path.stat()
    with path.open("r+b") as file:
        file.seek(position)
        byte = file.read(1)[0]
        file.seek(position)
        file.write(bytes([byte ^ 1 << bit]))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def flip_sample(shard_set: ShardSet, index: int) -> Path:
    """Flip a bit of the sample at *index*, see `flip`; return the shard's path."""
    path = shard_set.folder / shard_set.manifest.shards[int(shard_set.index.shards[index])].name
    flip(path, int(shard_set.index.offsets[index]) + 300)
    return path
