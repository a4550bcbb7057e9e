"""`<benchmark>/transformed_shards/<name>`: another shard set of one cell, with each image of the first transformed."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import dagster as dg

from tta_pipeline.defs.automation import out_of_date_condition
from tta_pipeline.defs.reporting import PartitionReport, PartitionRun
from tta_pipeline.defs.resources import MetricsStore, ShardStore
from tta_pipeline.defs.scope import Scope
from tta_pipeline.defs.shard_set_reporting import record_shard_set
from tta_pipeline.util.partitions import Cell

if TYPE_CHECKING:
    from tta_pipeline.util.processes import Workers


def transformed_shards(scope: Scope[Cell], name: str) -> dg.AssetsDefinition:
    """Return the asset of the shard sets that the transform *name* makes."""

    @scope.asset(
        "transformed_shards",
        name,
        deps=[scope.key("shard_manifest")],
        kinds={"webdataset"},
        code_version="1",
        automation_condition=out_of_date_condition(),
        description="Shards and manifest made from the first shard set of the cell: a function applied to each image, "
        "another size or format, further members. Nothing is rewritten when shards, settings and function are the "
        "same.",
    )
    def asset(
        context: dg.AssetExecutionContext, store: ShardStore, metrics: MetricsStore
    ) -> Iterator[dg.MaterializeResult[Any]]:
        with metrics.publishing(context.log), PartitionRun(context, scope) as run, store.workers() as workers:
            run.report_each(lambda cell: _transform(context, scope, name, store, metrics, cell=cell, workers=workers))
            yield run.result()

    return asset


def _transform(
    context: dg.AssetExecutionContext,
    scope: Scope[Cell],
    name: str,
    store: ShardStore,
    metrics: MetricsStore,
    *,
    cell: Cell,
    workers: "Workers",
) -> PartitionReport:
    from tta_pipeline.results.records import utc_now
    from tta_pipeline.shards.benchmark_expectation import expected_for_benchmark
    from tta_pipeline.shards.transformation import transform_shard_set
    from tta_pipeline.util.progress import log_reporter

    benchmark, locations, started_at = scope.benchmark, store.locations, utc_now()
    folder = locations.transformed(benchmark.name, name, cell)
    locations.require_own(folder)
    transformed = transform_shard_set(
        locations.shards(benchmark.name, cell),
        folder,
        benchmark.transforms[name],
        log_reporter(context.log.info),
        workers,
        belonging=expected_for_benchmark(benchmark, locations, cell),
    )
    return record_shard_set(
        context,
        scope,
        metrics,
        published=transformed.published,
        record=transformed.record,
        started_at=started_at,
        transform=name,
    )
