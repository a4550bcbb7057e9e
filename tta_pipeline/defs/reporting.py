"""Reports of each partition to Dagster, from a run over one or several partitions.

A run over a range can return only one result, with one data version and one check result for all of its partitions.
So the metadata, data version and check results of each partition are logged as events of that partition.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

import dagster as dg

from tta_pipeline.defs.scope import Scope, partition_of
from tta_pipeline.defs.user_errors import Metadata, as_failure, say_error
from tta_pipeline.domain.cells import Cell, PartitionKey
from tta_pipeline.errors import ManifestError
from tta_pipeline.util.progress import SweepProgress

K = TypeVar("K", bound=PartitionKey)
_DATA_VERSION = "dagster/data_version"


@dataclass(frozen=True, kw_only=True)
class PartitionReport:
    """The outcome of one partition."""

    summary: str
    """A few words for the log."""
    metadata: Metadata
    data_version: str


@dataclass(frozen=True, kw_only=True)
class CheckReport:
    """The finding of one check in one partition."""

    check: str
    passed: bool
    metadata: Metadata


class PartitionRun(Generic[K]):
    """A run over one or several partitions, which reports each finished partition even if another one fails.

    ::

        with PartitionRun(context, scope) as run:
            run.report_each(function)
            yield run.result()
    """

    def __init__(self, context: dg.AssetExecutionContext, scope: Scope[K]) -> None:
        self.keys: Sequence[K] = scope.keys(context)
        """Keys of the partitions that the run covers.

        Raises:
            PartitionKeyError: see `Scope.keys`.
        """
        self._context = context
        self._scope = scope
        self._pace = SweepProgress(context.log.info, num_cells=len(self.keys))
        self._reports: dict[K, PartitionReport] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        # A run over one partition returns its report, see `result`.
        for key, report in self._reports.items() if len(self.keys) > 1 else ():
            _log_materialization(self._context, partition_of(key), report)

    def report_each(self, work: Callable[[K], PartitionReport]) -> None:
        """Do *work* in each partition, and report it; see `reporting`."""
        for key in self.keys:
            with self.reporting(key) as report:
                report(work(key))

    @contextmanager
    def reporting(self, key: K) -> Iterator[Callable[[PartitionReport], None]]:
        """Yield the function that takes the report of the partition *key*; see `failure_hint` for errors.

        Raises:
            dg.Failure: see `failure_hint`.
        """
        with self.hinting(key):
            yield partial(self._reports.__setitem__, key)
        latest = f"{key.key}: {self._reports[key].summary}"
        if len(self.keys) > 1:
            self._pace.advance(latest)
        else:
            self._context.log.info(latest)

    def hinting(self, key: K) -> AbstractContextManager[None]:
        """Return the context manager that adds a hint to a failure at *key*; see `failure_hint`."""
        return failure_hint(self._scope, self._context.asset_key, key)

    def result(self) -> dg.MaterializeResult[Any]:
        """Return the result of the whole run.

        Dagster needs one result with one data version even for several partitions; the events that are logged at the
        end of the block override it.
        """
        if len(self.keys) > 1:
            return dg.MaterializeResult()
        (report,) = self._reports.values()
        return dg.MaterializeResult(metadata=report.metadata, data_version=dg.DataVersion(report.data_version))


def failure_hint(scope: Scope[PartitionKey], asset_key: dg.AssetKey, key: PartitionKey) -> AbstractContextManager[None]:
    """Turn a failure in the block into one that shows its partition, its reason and the command to repeat it.

    Raises:
        dg.Failure: see `as_failure`.
    """

    def describe(error: Exception) -> tuple[str, Metadata]:
        command = _repeat_command(scope, asset_key, key, error)
        return f"{key.key}: {say_error(error)}", {"cell": key.key, "then_type": dg.MetadataValue.md(f"`{command}`")}

    return as_failure(describe)


def _repeat_command(scope: Scope[PartitionKey], asset_key: dg.AssetKey, key: PartitionKey, error: Exception) -> str:
    """Return the command that repeats the partition, starting from its shards if they are at fault."""
    # A stream over several cells has other partitions than its cells.
    are_shards_wrong = isinstance(error, ManifestError) and isinstance(key, Cell)
    names = (*(["images"] if scope.benchmark.is_drawn else []), "tar_shards", "shard_manifest")
    shards = [scope.key(name) for name in names] if are_shards_wrong else []
    select = ",".join(each.to_user_string() for each in dict.fromkeys([*shards, asset_key]))
    partition = partition_of(key)
    which = f" --partition '{partition}'" if partition else ""
    return f"dg launch --assets '{select}'{which}"


def define_checks(
    scope: Scope[PartitionKey], key: dg.AssetKey, descriptions: Mapping[str, str]
) -> Callable[[Callable[..., Any]], dg.AssetChecksDefinition]:
    """Return the decorator for the checks of each partition of the asset *key*; *descriptions* are by check name."""
    decorator = dg.multi_asset_check(
        name=f"{key.to_python_identifier()}_checks",
        specs=[
            dg.AssetCheckSpec(name, asset=key, description=text, partitions_def=scope.partitions)
            for name, text in descriptions.items()
        ],
        can_subset=True,  # otherwise the web UI starts no check without the asset
    )
    return lambda function: decorator(scope.body(function))


class CheckRun(Generic[K]):
    """A run of checks over one or several partitions, which reports the findings for each partition.

    ::

        run = CheckRun(context, scope, asset_key)
        for key in run.keys:
            with run.hinting(key):
                reports = ...
            yield from run.results(key, reports)
        yield from run.outputs()
    """

    def __init__(self, context: dg.AssetCheckExecutionContext, scope: Scope[K], asset_key: dg.AssetKey) -> None:
        self.keys: Sequence[K] = scope.keys(context)
        self._context = context
        self._scope = scope
        self._asset_key = asset_key
        self._selected = context.selected_asset_check_keys

    def hinting(self, key: K) -> AbstractContextManager[None]:
        """Return the context manager that adds a hint to a failure at *key*; see `failure_hint`."""
        return failure_hint(self._scope, self._asset_key, key)

    def results(self, key: K, reports: Sequence[CheckReport]) -> Iterator[dg.AssetCheckEvaluation]:
        """Yield the findings of the selected checks in the partition *key*."""
        # Public names offer it for runs over one partition; without it, Dagster shows the partition as unchecked.
        from dagster._core.definitions.asset_checks.asset_check_evaluation import (
            AssetCheckEvaluationTargetMaterializationData,
        )

        partition = partition_of(key)
        made = self._context.instance.get_latest_data_version_record(
            self._asset_key, is_source=False, partition_key=partition
        )
        target = made and AssetCheckEvaluationTargetMaterializationData(
            storage_id=made.storage_id, run_id=made.run_id, timestamp=made.timestamp
        )
        for report in reports:
            if dg.AssetCheckKey(self._asset_key, report.check) in self._selected:
                yield dg.AssetCheckEvaluation(
                    asset_key=self._asset_key,
                    check_name=report.check,
                    passed=report.passed,
                    metadata=report.metadata,
                    partition=partition,
                    target_materialization_data=target,
                )

    def outputs(self) -> Iterator[dg.Output[None]]:
        """Yield the outputs that Dagster waits for at the end of a run of checks."""
        layer = self._context.op_execution_context.job_def.asset_layer
        for check in self._selected:
            output_name = layer.get_op_output_name(check)
            if output_name:
                yield dg.Output(None, output_name=output_name)


def _log_materialization(context: dg.AssetExecutionContext, partition: str | None, report: PartitionReport) -> None:
    context.log_event(
        dg.AssetMaterialization(
            asset_key=context.asset_key,
            partition=partition,
            metadata=report.metadata,
            tags=_version_tags(context, partition, report.data_version),
        )
    )


def picture(what: str, png: bytes) -> dg.MarkdownMetadataValue:
    """Return a picture for the web UI; *what* describes it in words."""
    from tta_pipeline.report.pictures import as_data_uri

    return dg.MetadataValue.md(f"![{what}]({as_data_uri(png)})")


def known_version(record: dg.EventLogRecord | None) -> str | None:
    """Return the data version in *record* of a history; None if there is none."""
    tags = record.event_log_entry.tags if record else None
    return (tags or {}).get(_DATA_VERSION)


def _version_tags(context: dg.AssetExecutionContext, partition: str | None, data_version: str) -> Mapping[str, str]:
    """Return the tags with the versions of the code, data and inputs of *partition*, as Dagster expects them."""
    graph = context.job_def.asset_layer.asset_graph
    asset = graph.get(context.asset_key)
    tags = {
        "dagster/code_version": asset.code_version or "",
        _DATA_VERSION: data_version,
        "dagster/data_version_is_user_provided": "true",
    }
    for dependency in asset.parent_keys:
        # A stream has other partitions than its inputs.
        is_partitioned = graph.get(dependency).partitions_def == asset.partitions_def is not None
        # Made or observed: in the graph of a run, nothing outside the run can be materialized.
        record = context.instance.get_latest_data_version_record(
            dependency, partition_key=partition if is_partitioned else None
        )
        tags[f"dagster/input_data_version/{dependency.to_user_string()}"] = known_version(record) or "INITIAL"
        tags[f"dagster/input_event_pointer/{dependency.to_user_string()}"] = (
            str(record.storage_id) if record else "NULL"
        )
    return tags
