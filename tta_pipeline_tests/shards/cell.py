"""A cell of real JPEG files and the settings that make shards of it."""

from tta_pipeline.benchmarks.spec import ShardSettings
from tta_pipeline.partitions import Cell
from tta_pipeline.progress import Progress
from tta_pipeline.sources.class_map import ClassMap

CELL = Cell(corruption="fog", severity=5)
CLASS_MAP = ClassMap(classes=("n01", "n02", "n03"))
LIMITS = ShardSettings(num_shards=3, seed=7)
QUIET = Progress(lambda _: None, what="test", total=0)
