"""Assets, checks and resources of benchmarks: what the code location and other Dagster projects share."""

from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from typing import Any

import dagster as dg

from tta_pipeline.benchmarks.load_files import LoadedBenchmarks
from tta_pipeline.defs.evaluation import evaluation
from tta_pipeline.defs.faults import fault_assets
from tta_pipeline.defs.images import images
from tta_pipeline.defs.loader_benchmark import loader_benchmark
from tta_pipeline.defs.resources import Compute, MetricsStore, ShardStore
from tta_pipeline.defs.resources.bound import with_defaults
from tta_pipeline.defs.robustness_report import robustness_report
from tta_pipeline.defs.scope import Scopes
from tta_pipeline.defs.shard_manifest import shard_manifest
from tta_pipeline.defs.source_model import source_model
from tta_pipeline.defs.tar_shards import tar_shards
from tta_pipeline.defs.tuning import tuning
from tta_pipeline.domain.locations import Locations

RESOURCE_PREFIX = "tta_"
"""Prefix of the keys of resources in another project."""
_FILES: tuple[Callable[[Scopes], Iterator[dg.AssetsDefinition | dg.SourceAsset]], ...] = (
    images,
    tar_shards,
    shard_manifest,
    loader_benchmark,
    source_model,
    evaluation,
    tuning,
    robustness_report,
)
"""The contribution of each file of assets to a benchmark: assets and checks, or nothing."""


def asset_definitions(loaded: LoadedBenchmarks, locations: Locations, resource_prefix: str = "") -> dg.Definitions:
    """Return the assets, checks and resources of the benchmarks in *loaded*, and an asset for each fault."""
    scopes = [Scopes.of(benchmark, resource_prefix) for benchmark in loaded.benchmarks.values()]
    found = [definition for each in scopes for file in _FILES for definition in file(each)]
    return dg.Definitions(
        assets=[*(each for each in found if not isinstance(each, dg.AssetChecksDefinition)), *fault_assets(loaded)],
        asset_checks=[each for each in found if isinstance(each, dg.AssetChecksDefinition)],
        resources=_resources(str(locations.root), str(locations.store or ""), resource_prefix),
    )


@lru_cache
def _resources(data_root: str, shards_root: str, prefix: str) -> Mapping[str, Any]:
    """Return the resources, the same objects each time; otherwise Dagster cannot merge definitions."""
    return {
        f"{prefix}store": with_defaults(ShardStore, data_root=data_root, shards_root=shards_root),
        f"{prefix}metrics": with_defaults(MetricsStore, data_root=data_root),
        f"{prefix}compute": Compute(),
    }
