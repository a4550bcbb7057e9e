"""The Dagster jobs of each benchmark: one job runs all of its assets, for one cell or for a range of cells in one run.

All assets of a job must have the same partitions, so streams over several cells have separate jobs.
"""

from collections import defaultdict
from collections.abc import Sequence

import dagster as dg

from tta_pipeline.benchmarks.benchmark import Benchmark
from tta_pipeline.benchmarks.stream_plans import stream_keys
from tta_pipeline.defs.scope import Scopes, StreamScope, asset_key
from tta_pipeline.domain.cells import WHOLE, StreamKey
from tta_pipeline.evaluation.work.planned_runs import assets_of_shards


def benchmark_jobs(benchmark: Benchmark, faulty: Sequence[dg.AssetKey]) -> dg.Definitions:
    """Return the jobs of *benchmark*; `evaluate_everything` includes the *faulty* experiments."""
    jobs = {
        "shard_everything": (
            _shard_keys(benchmark),
            "Shards and manifests of every cell, and of the clean and training images if there are any.",
        ),
        "evaluate_everything": (
            [*_evaluation_keys(benchmark), *faulty],
            (
                "Source model, every experiment on every cell and on the clean images, and the report; the shards must "
                "exist. Finished cells are not evaluated again. Fails at the end if the benchmark file has faulty "
                "experiments."
            ),
        ),
    }
    for name, keys in _stream_jobs(benchmark).items():
        jobs[name] = (keys, "Every experiment over streams of several cells; the shards must exist.")
    return dg.Definitions(
        jobs=[
            dg.define_asset_job(
                f"{benchmark.dagster_name}__{name}", selection=dg.AssetSelection.assets(*keys), description=description
            )
            for name, (keys, description) in jobs.items()
        ]
    )


def _shard_keys(benchmark: Benchmark) -> list[dg.AssetKey]:
    # Images already on disk are an observable source, which a run that materializes cannot include.
    return [scope.key(name) for scope in Scopes.of(benchmark).shard_sets for name in assets_of_shards(benchmark)]


def _evaluation_keys(benchmark: Benchmark) -> list[dg.AssetKey]:
    return [
        *(asset_key(benchmark, benchmark.source_model_asset(model)) for model in benchmark.trained_models),
        *(
            scope.key("evaluation", name)
            for scope, name in Scopes.of(benchmark).experiments
            if not isinstance(scope, StreamScope)
        ),
        asset_key(benchmark, "robustness_report"),
    ]


def _stream_jobs(benchmark: Benchmark) -> dict[str, list[dg.AssetKey]]:
    """Return the keys of the experiments over streams by job: one job for each set of severities."""
    every = tuple(StreamKey(severity=severity) for severity in sorted(benchmark.severities))
    found: dict[str, list[dg.AssetKey]] = defaultdict(list)
    for experiment in benchmark.experiments_of_streams:
        keys = stream_keys(benchmark, experiment)
        name = (
            "evaluate_streams" if keys in (every, (WHOLE,)) else f"evaluate_streams_{'_'.join(key.key for key in keys)}"
        )
        found[name].append(asset_key(benchmark, "evaluation", experiment))
    return found
