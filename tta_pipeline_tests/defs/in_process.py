"""Runs in the process of the test: for what a run does, where the command line that starts it is not the point."""

from collections.abc import Sequence
from contextlib import nullcontext

import dagster as dg

from tta_pipeline.benchmarks.load_files import load_all_benchmarks
from tta_pipeline.definitions import _definitions, _without_unused_embedded
from tta_pipeline.defs.in_process import range_tags
from tta_pipeline.domain.locations import Locations
from tta_pipeline.util.json_values import JsonObject
from tta_pipeline_tests.conftest import Project


def code_location(locations: Locations) -> dg.Definitions:
    """Return what the web UI loads: without the embedded benchmark, which takes longest, if others are in use."""
    return _definitions(_without_unused_embedded(load_all_benchmarks(locations), locations), locations)


def execute(
    project: Project,
    assets: Sequence[str],
    partitions: Sequence[str] = (),
    *,
    publishes: bool = False,
    compute: JsonObject | None = None,
    config: JsonObject | None = None,
    instance: dg.DagsterInstance | None = None,
) -> dg.ExecuteInProcessResult:
    """Materialize *assets* in one run, as the web UI does.

    Args:
        project: Whose data.
        assets: Keys such as `small/evaluation/tent`.
        partitions: First and last key of a range, or one key; none where the assets have no partitions.
        publishes: Whether results go to the database.
        compute: Settings of the resource of this name.
        config: Configuration of ops, by their names.
        instance: With the history of the run; by default one without past and future, which takes half the time.
    """
    tags = range_tags(partitions) if len(partitions) > 1 else dict(zip(["dagster/partition"], partitions, strict=False))
    metrics = {"publishes": publishes}
    resources = {"metrics": {"config": metrics}, "compute": {"config": dict(compute or {})}}
    job = code_location(project.locations).resolve_implicit_global_asset_job_def()
    subset = job.get_subset(asset_selection={dg.AssetKey(asset.split("/")) for asset in assets})
    with dg.DagsterInstance.ephemeral() if instance is None else nullcontext(instance) as history:
        return subset.execute_in_process(
            instance=history,
            tags=dict(tags),
            run_config={"resources": resources, "loggers": {"console": {}}, "ops": config or {}},
            raise_on_error=False,
        )


def what_failed(result: dg.ExecuteInProcessResult) -> str:
    """Return what the failed steps of a run say."""
    errors = [event.step_failure_data.error for event in result.all_events if event.is_step_failure]
    return "\n".join(error.to_string() for error in errors if error is not None)
