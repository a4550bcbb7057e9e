"""The table of contents: benchmark files in, Dagster definitions out."""

import warnings
from collections.abc import Iterator

import dagster as dg

from tta_pipeline.benchmarks.benchmark import Benchmark
from tta_pipeline.benchmarks.load_files import load_all_benchmarks
from tta_pipeline.defs.automation import automation_sensor
from tta_pipeline.defs.evaluation import evaluation, evaluation_checks
from tta_pipeline.defs.faults import fault_assets, fault_key
from tta_pipeline.defs.jobs import benchmark_jobs
from tta_pipeline.defs.loader_benchmark import loader_benchmark
from tta_pipeline.defs.new_cells_sensor import new_cells_sensor
from tta_pipeline.defs.resources import Compute, MetricsStore, ShardStore, console
from tta_pipeline.defs.robustness_report import robustness_report
from tta_pipeline.defs.scope import CellScope, evaluated_scopes, experiment_scopes, held_out_scopes, shard_scopes
from tta_pipeline.defs.shard_manifest import shard_manifest, shard_manifest_checks
from tta_pipeline.defs.source_model import source_model
from tta_pipeline.defs.source_split import source_split
from tta_pipeline.defs.submissions_sensor import submissions_sensor
from tta_pipeline.defs.tar_shards import tar_shards
from tta_pipeline.defs.transformed_shards import transformed_shards
from tta_pipeline.defs.tuning import tuning
from tta_pipeline.util.environment import let_idle_threads_sleep
from tta_pipeline.util.locations import Locations
from tta_pipeline.util.source_code import import_from_here

# Partitioned checks and backfill policies are marked preview and beta; the pinned version is the one we tested.
warnings.filterwarnings("ignore", category=dg.PreviewWarning)
warnings.filterwarnings("ignore", category=dg.BetaWarning)


def build_definitions(locations: Locations) -> dg.Definitions:
    """Return the definitions of every benchmark, the embedded ones and those under the data root.

    Each fault in a benchmark file becomes an asset that describes it; see `defs.faults`.
    """
    loaded = load_all_benchmarks(locations)
    benchmarks = loaded.benchmarks
    data_root = str(locations.root)
    return dg.Definitions(
        assets=[*(asset for each in benchmarks.values() for asset in _assets(each)), *fault_assets(loaded)],
        asset_checks=[check for benchmark in benchmarks.values() for check in _checks(benchmark)],
        jobs=[
            job
            for benchmark in benchmarks.values()
            for job in benchmark_jobs(benchmark, [fault_key(each) for each in loaded.faults_of(benchmark.name)])
        ],
        sensors=[
            automation_sensor(),
            submissions_sensor(benchmarks),
            *(new_cells_sensor(each) for each in benchmarks.values() if not each.is_drawn),
        ],
        resources={
            "store": ShardStore(data_root=data_root, shards_root=str(locations.store or "")),
            "metrics": MetricsStore(data_root=data_root),
            "compute": Compute(),
        },
        # Each run is a process already, and its steps follow one another: more processes would only cost imports.
        executor=dg.in_process_executor,
        loggers={"console": console},
    )


def _assets(benchmark: Benchmark) -> Iterator[dg.AssetsDefinition | dg.SourceAsset]:
    cells = CellScope(benchmark=benchmark)
    held_out = tuple(held_out_scopes(benchmark))
    for scope in (*shard_scopes(benchmark), *held_out):
        yield source_split(scope)
        yield tar_shards(scope)
        yield shard_manifest(scope)
    for scope in (*evaluated_scopes(benchmark), *held_out):
        for transform in benchmark.transforms:
            yield transformed_shards(scope, transform)
    yield loader_benchmark(cells)
    for model in benchmark.trained_models:
        yield source_model(cells, model)
    for streams, experiment in experiment_scopes(benchmark):
        yield evaluation(streams, experiment)
    if held_out:
        yield from (tuning(cells, name) for name in benchmark.tuning if name in benchmark.experiments)
    yield robustness_report(cells)


def _checks(benchmark: Benchmark) -> Iterator[dg.AssetChecksDefinition]:
    for scope in (*shard_scopes(benchmark), *held_out_scopes(benchmark)):
        yield shard_manifest_checks(scope)
    for streams, experiment in experiment_scopes(benchmark):
        yield evaluation_checks(streams, experiment)


import_from_here()
let_idle_threads_sleep()
defs = build_definitions(Locations.from_environment())
