"""Materialize assets in this process, without the daemon, and configure such runs."""

from collections.abc import Mapping, Sequence

import dagster as dg

from tta_pipeline.benchmarks.benchmark import Benchmark
from tta_pipeline.defs.scope import asset_key
from tta_pipeline.evaluation.work.planned_runs import PlannedRun
from tta_pipeline.util.json_values import JsonObject


def materialize_in_process(
    definitions: dg.Definitions,
    keys: Sequence[dg.AssetKey],
    *,
    instance: dg.DagsterInstance,
    run_config: JsonObject,
    tags: Mapping[str, str] | None = None,
) -> dg.ExecuteInProcessResult:
    """Materialize the assets *keys*, which have the same partitions; a failure is in the result, not raised."""
    job = definitions.resolve_implicit_job_def_def_for_assets(keys)
    assert job is not None, "the definitions have the assets, and these have the same partitions"
    return job.execute_in_process(
        asset_selection=keys, tags=tags, run_config=run_config, instance=instance, raise_on_error=False
    )


def materialize_run(
    definitions: dg.Definitions,
    benchmark: Benchmark,
    planned_run: PlannedRun,
    *,
    instance: dg.DagsterInstance,
    run_config: JsonObject,
    force: bool = False,
) -> dg.ExecuteInProcessResult:
    """Materialize *planned_run* in this process, and record it in the history of *instance*.

    With *force*, finished cells are evaluated again.
    """
    keys = asset_keys(benchmark, planned_run)
    forced = {key.to_python_identifier(): {"config": {"force": True}} for key in keys} if force else {}
    return materialize_in_process(
        definitions,
        keys,
        instance=instance,
        run_config={**run_config, "ops": forced} if planned_run.stage == "evaluations" else run_config,
        tags={**range_tags(planned_run.keys), **_shown_tags(planned_run.keys)},
    )


def was_interrupted(result: dg.ExecuteInProcessResult) -> bool:
    """Return whether SIGTERM or SIGINT ended the run: Dagster turns them into an error."""
    errors = [event.step_failure_data.error for event in result.all_events if event.is_step_failure]
    return any(
        error is not None and dg.DagsterExecutionInterruptedError.__name__ in error.to_string() for error in errors
    )


def asset_keys(benchmark: Benchmark, planned_run: PlannedRun) -> list[dg.AssetKey]:
    """Return the keys of the assets of *planned_run*."""
    return [asset_key(benchmark, asset) for asset in planned_run.assets]


def range_tags(keys: Sequence[str]) -> Mapping[str, str]:
    """Return the run tags with the partition range from the first to the last of *keys*; empty if there are none."""
    if not keys:
        return {}
    return {"dagster/asset_partition_range_start": keys[0], "dagster/asset_partition_range_end": keys[-1]}


def _shown_tags(keys: Sequence[str]) -> Mapping[str, str]:
    """Return the tag that the list of runs shows, such as `partitions: fog|1 to fog|5`; empty without *keys*."""
    return {"partitions": " to ".join(dict.fromkeys([keys[0], keys[-1]]))} if keys else {}


def run_config(compute: JsonObject, *, publishes: bool) -> JsonObject:
    """Return the configuration of a run with the settings *compute*.

    Args:
        compute: Settings of the resource of this name.
        publishes: Whether the run publishes results to the database.
    """
    return {
        "resources": {"metrics": {"config": {"publishes": publishes}}, "compute": {"config": dict(compute)}},
        "loggers": {"console": {}},
    }
