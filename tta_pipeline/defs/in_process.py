"""Materialize assets in this process, without the daemon."""

from collections.abc import Mapping, Sequence

import dagster as dg

from tta_pipeline.util.json_values import JsonObject


def materialize_in_process(
    definitions: dg.Definitions,
    keys: Sequence[dg.AssetKey],
    *,
    instance: dg.DagsterInstance,
    run_config: JsonObject,
    tags: Mapping[str, str] | None = None,
) -> dg.ExecuteInProcessResult:
    """Materialize the assets *keys*, which have one kind of partitions; a failure is in the result, not raised."""
    job = definitions.resolve_implicit_job_def_def_for_assets(keys)
    assert job is not None, "the definitions have the assets, and these have one kind of partitions"
    return job.execute_in_process(
        asset_selection=keys, tags=tags, run_config=run_config, instance=instance, raise_on_error=False
    )


def was_interrupted(result: dg.ExecuteInProcessResult) -> bool:
    """Return whether SIGTERM or SIGINT ended the run: Dagster makes an error of them."""
    errors = [event.step_failure_data.error for event in result.all_events if event.is_step_failure]
    return any(
        error is not None and dg.DagsterExecutionInterruptedError.__name__ in error.to_string() for error in errors
    )
