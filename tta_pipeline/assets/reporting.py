"""How a run over one cell, or over many, tells Dagster what became of each.

A run over a range of partitions can return one result only, with one data version and one check result for all of
them. So each cell's metadata, data version and check results are logged as events of its own partition.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import dagster as dg
from dagster._core.definitions.asset_checks.asset_check_evaluation import AssetCheckEvaluationTargetMaterializationData

from tta_pipeline.assets.scope import Scope, with_signature
from tta_pipeline.errors import ManifestError, PipelineError
from tta_pipeline.partitions import Cell
from tta_pipeline.progress import Pace


@dataclass(frozen=True, kw_only=True)
class CellReport:
    """What became of one cell."""

    summary: str
    """A few words for the log."""
    metadata: Mapping[str, Any]
    data_version: str


@dataclass(frozen=True, kw_only=True)
class CheckReport:
    """What one check found in one cell."""

    check: str
    passed: bool
    severity: dg.AssetCheckSeverity = dg.AssetCheckSeverity.ERROR
    """Of a failure."""
    metadata: Mapping[str, Any] = field(default_factory=dict)


@contextmanager
def way_out(scope: Scope, asset_key: dg.AssetKey, key: str) -> Iterator[None]:
    """Let the page of a run that fails at the cell or stream *key* say of which, why, and what to type.

    The error itself, with its traceback, stays the cause of what is raised.

    Raises:
        dg.Failure: for any `PipelineError` in the block.
    """
    try:
        yield
    except PipelineError as error:
        raise dg.Failure(
            description=f"{key}: {error}",
            metadata={
                "cell": key,
                "fault": type(error).__name__,
                "then_type": dg.MetadataValue.md(f"`{_command(scope, asset_key, key, error)}`"),
            },
        ) from error


def _command(scope: Scope, asset_key: dg.AssetKey, key: str, error: PipelineError) -> str:
    """Return the command that repeats the cell, from its shards on if it is they that are wrong."""
    # A stream over several cells has other partitions than they have.
    is_cell = scope.single is not None or "|" in key
    shards = [scope.key("tar_shards"), scope.key("shard_manifest")] if is_cell else []
    keys = dict.fromkeys([*(shards if isinstance(error, ManifestError) else []), asset_key])
    select = ",".join(each.to_user_string() for each in keys)
    partition = scope.partition(key)
    which = f" --partition '{partition}'" if partition else ""
    return f"dagster asset materialize -m tta_pipeline.definitions --select '{select}'{which}"


def materialize_cells(
    context: dg.AssetExecutionContext, scope: Scope, work: Callable[[Cell], CellReport]
) -> Iterator[dg.MaterializeResult[Any]]:
    """Do *work* for every cell of the run and report each, as `materialize_keys` does."""
    cells = {cell.key: cell for cell in scope.cells(context)}
    yield from materialize_keys(context, scope, tuple(cells), lambda key: work(cells[key]))


def materialize_keys(
    context: dg.AssetExecutionContext, scope: Scope, keys: Sequence[str], work: Callable[[str], CellReport]
) -> Iterator[dg.MaterializeResult[Any]]:
    """Do *work* for each of *keys*, those of the run, and report each.

    When one fails or the run is cancelled, those that are done are reported all the same.
    """
    if len(keys) == 1:
        with way_out(scope, context.asset_key, keys[0]):
            report = work(keys[0])
        context.log.info(f"{keys[0]}: {report.summary}")
        yield dg.MaterializeResult(metadata=report.metadata, data_version=dg.DataVersion(report.data_version))
        return
    reports: dict[str, CellReport] = {}
    pace = Pace(context.log.info, num_cells=len(keys))
    try:
        for key in keys:
            with way_out(scope, context.asset_key, key):
                reports[key] = work(key)
            pace.advance(f"{key}: {reports[key].summary}")
        # Dagster needs one result for the range, with one data version for all of it; the events after it correct that.
        yield dg.MaterializeResult()
    finally:
        for key, report in reports.items():
            _log_materialization(context, scope.partition(key), report)


def check_cells(
    context: dg.AssetCheckExecutionContext,
    scope: Scope,
    asset_key: dg.AssetKey,
    work: Callable[[Cell], Sequence[CheckReport]],
) -> Iterator[Any]:
    """Do *work* for every cell of the run and yield what each check found, by partition."""
    cells = {cell.key: cell for cell in scope.cells(context)}
    yield from check_keys(context, scope, asset_key, keys=tuple(cells), work=lambda key: work(cells[key]))


def checks_of(
    scope: Scope, key: dg.AssetKey, descriptions: Mapping[str, str]
) -> Callable[[Callable[..., Any]], dg.AssetChecksDefinition]:
    """Return the decorator for the checks of the asset *key*, by name with what each holds, of each partition."""
    decorator = dg.multi_asset_check(
        name=f"{key.to_python_identifier()}_checks",
        specs=[
            dg.AssetCheckSpec(name, asset=key, description=text, partitions_def=scope.partitions)
            for name, text in descriptions.items()
        ],
        can_subset=True,  # else the web UI starts none without the asset
    )
    return lambda function: decorator(with_signature(function))


def check_keys(
    context: dg.AssetCheckExecutionContext,
    scope: Scope,
    asset_key: dg.AssetKey,
    *,
    keys: Sequence[str],
    work: Callable[[str], Sequence[CheckReport]],
) -> Iterator[Any]:
    """Do *work* for each of *keys*, those of the run, and yield what each selected check found, by partition."""
    selected = context.selected_asset_check_keys
    for key in keys:
        with way_out(scope, asset_key, key):
            reports = work(key)
        partition = scope.partition(key)
        target = _checked_materialization(context.instance, asset_key, partition)
        for report in reports:
            if dg.AssetCheckKey(asset_key, report.check) not in selected:
                continue
            yield dg.AssetCheckEvaluation(
                asset_key=asset_key,
                check_name=report.check,
                passed=report.passed,
                severity=report.severity,
                metadata=report.metadata,
                partition=partition,
                target_materialization_data=target,
            )
    layer = context.op_execution_context.job_def.asset_layer
    for check in selected:
        output_name = layer.get_op_output_name(check)
        if output_name:
            yield dg.Output(None, output_name=output_name)


def _checked_materialization(
    instance: dg.DagsterInstance, asset_key: dg.AssetKey, partition: str | None
) -> AssetCheckEvaluationTargetMaterializationData | None:
    """Return what a check is a check of; Dagster takes a partition whose check does not say for one without check."""
    record = instance.get_latest_data_version_record(asset_key, is_source=False, partition_key=partition)
    return record and AssetCheckEvaluationTargetMaterializationData(
        storage_id=record.storage_id, run_id=record.run_id, timestamp=record.timestamp
    )


def _log_materialization(context: dg.AssetExecutionContext, partition: str | None, report: CellReport) -> None:
    context.log_event(
        dg.AssetMaterialization(
            asset_key=context.asset_key,
            partition=partition,
            metadata=report.metadata,
            tags=_version_tags(context, partition, report.data_version),
        )
    )


def _version_tags(context: dg.AssetExecutionContext, partition: str | None, data_version: str) -> Mapping[str, str]:
    """Return the tags by which Dagster knows what this partition is and what it was made from."""
    tags = {
        "dagster/code_version": context.assets_def.code_versions_by_key[context.asset_key] or context.run.run_id,
        "dagster/data_version": data_version,
        "dagster/data_version_is_user_provided": "true",
    }
    graph = context.job_def.asset_layer
    for dependency in context.assets_def.asset_deps[context.asset_key]:
        # What a stream is made of has other partitions than the stream.
        is_partitioned = graph.get(dependency).partitions_def == context.assets_def.partitions_def is not None
        record = context.instance.get_latest_data_version_record(
            dependency, not graph.get(dependency).is_materializable, partition if is_partitioned else None
        )
        version = record.event_log_entry.tags.get("dagster/data_version") if record else None
        tags[f"dagster/input_data_version/{dependency.to_user_string()}"] = version or "INITIAL"
        tags[f"dagster/input_event_pointer/{dependency.to_user_string()}"] = (
            str(record.storage_id) if record else "NULL"
        )
    return tags
