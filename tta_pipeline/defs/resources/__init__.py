"""Dagster resources: where data is stored, how results are stored, and which device computes."""

from tta_pipeline.defs.resources.compute import Compute
from tta_pipeline.defs.resources.console_logger import console
from tta_pipeline.defs.resources.metrics_store import MetricsStore
from tta_pipeline.defs.resources.shard_store import ShardStore

__all__ = ["Compute", "MetricsStore", "ShardStore", "console"]
