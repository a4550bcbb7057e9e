"""Assets, checks and resources of benchmarks: what the code location and the projects of others have in common."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any

import dagster as dg

from tta_pipeline.benchmarks.benchmark import Benchmark
from tta_pipeline.benchmarks.load_files import LoadedBenchmarks
from tta_pipeline.defs.evaluation import evaluation, evaluation_checks
from tta_pipeline.defs.faults import fault_assets
from tta_pipeline.defs.loader_benchmark import loader_benchmark
from tta_pipeline.defs.resources import Compute, MetricsStore, ShardStore
from tta_pipeline.defs.robustness_report import robustness_report
from tta_pipeline.defs.scope import CellScope, experiment_scopes, held_out_scopes, shard_scopes
from tta_pipeline.defs.shard_manifest import shard_manifest, shard_manifest_checks
from tta_pipeline.defs.source_model import source_model
from tta_pipeline.defs.source_split import source_split
from tta_pipeline.defs.tar_shards import tar_shards
from tta_pipeline.defs.tuning import tuning
from tta_pipeline.domain.locations import Locations

RESOURCE_PREFIX = "tta_"
"""Prefix of the keys of resources in a project of others."""


def asset_definitions(loaded: LoadedBenchmarks, locations: Locations, resource_prefix: str = "") -> dg.Definitions:
    """Return the assets, checks and resources of the benchmarks in *loaded*, and an asset for each fault."""
    benchmarks = loaded.benchmarks.values()
    return dg.Definitions(
        assets=[*(asset for each in benchmarks for asset in _assets(each, resource_prefix)), *fault_assets(loaded)],
        asset_checks=[check for each in benchmarks for check in _checks(each, resource_prefix)],
        resources=_resources(str(locations.root), str(locations.store or ""), resource_prefix),
    )


@lru_cache
def _resources(data_root: str, shards_root: str, prefix: str) -> Mapping[str, Any]:
    """Return the resources, the same objects each time: only then can Dagster merge definitions that have them."""
    return {
        f"{prefix}store": ShardStore(data_root=data_root, shards_root=shards_root),
        f"{prefix}metrics": MetricsStore(data_root=data_root),
        f"{prefix}compute": Compute(),
    }


def _assets(benchmark: Benchmark, resource_prefix: str) -> Iterator[dg.AssetsDefinition | dg.SourceAsset]:
    own = partial(replace, resource_prefix=resource_prefix)
    cells = own(CellScope(benchmark=benchmark))
    held_out = tuple(map(own, held_out_scopes(benchmark)))
    for scope in (*map(own, shard_scopes(benchmark)), *held_out):
        yield source_split(scope)
        yield tar_shards(scope)
        yield shard_manifest(scope)
    yield loader_benchmark(cells)
    for model in benchmark.trained_models:
        yield source_model(cells, model)
    for streams, experiment in experiment_scopes(benchmark):
        yield evaluation(own(streams), experiment)
    if held_out:
        yield from (tuning(cells, name) for name in benchmark.tuning if name in benchmark.experiments)
    yield robustness_report(cells)


def _checks(benchmark: Benchmark, resource_prefix: str) -> Iterator[dg.AssetChecksDefinition]:
    own = partial(replace, resource_prefix=resource_prefix)
    for scope in map(own, (*shard_scopes(benchmark), *held_out_scopes(benchmark))):
        yield shard_manifest_checks(scope)
    for streams, experiment in experiment_scopes(benchmark):
        yield evaluation_checks(own(streams), experiment)
