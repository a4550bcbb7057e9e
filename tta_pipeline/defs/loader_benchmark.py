"""`<benchmark>/loader_benchmark`: how fast loaders read one cell's shards, without a model."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Literal

import dagster as dg
from pydantic import Field

from tta_pipeline.defs.reporting import PartitionReport, PartitionRun, picture
from tta_pipeline.defs.resources import MetricsStore, ShardStore
from tta_pipeline.defs.scope import CellScope, Scopes
from tta_pipeline.domain.cells import Cell

if TYPE_CHECKING:
    from tta_pipeline.extras.loader_bench.measure import LoaderRow, Settings

_SHOWN = (
    "loader", "output", "num_threads", "images_per_s", "images_per_s_min", "images_per_s_max", "time_to_first_batch_s",
    "cpu_s_per_image", "mb_per_s", "peak_memory_mib",
)  # fmt: skip


class LoaderBenchmarkConfig(dg.Config):
    """Options of one run."""

    loaders: list[str] = Field(default=[], description="Names: indexed, webdataset, imagefolder; empty: all")
    batch_size: int = Field(default=64, ge=1)
    num_threads: list[int] = Field(
        default=[],
        description="Numbers of threads or worker processes to try; the fastest counts; empty: one for each core",
    )
    num_processes: int = Field(default=1, ge=1, description="Processes, each of which reads a part of the cell")
    repeats: int = Field(default=3, ge=1)
    normalization: Literal["own", "host", "device"] = Field(
        default="own", description="Where images are normalised: as each system does, on the host, or on the device"
    )
    device: str = Field(
        default="cpu",
        description="Device on which images are normalised if normalization is device: cpu, or a kind such as cuda",
    )


def loader_benchmark(scopes: Scopes) -> Iterator[dg.AssetsDefinition]:
    """Yield the asset of the loaders' speeds.

    It is in a separate group, so that materializing a whole benchmark does not start hours of measurements.
    """
    scope = scopes.cells

    @scope.asset(
        "loader_benchmark",
        group_name=f"{scope.benchmark.dagster_name}_loaders",
        backfill_policy=dg.BackfillPolicy.single_run(),
        deps=[scope.key("shard_manifest")],
        kinds={"pytorch"},
        code_version="1",
        description="Speed of three loaders on the same images. Images/s, time to the first batch, CPU time and "
        "memory of this project's reader, of webdataset and of loose files, without a model: one process per pass, the "
        "loaders in turn.",
    )
    def asset(
        context: dg.AssetExecutionContext, config: LoaderBenchmarkConfig, store: ShardStore, metrics: MetricsStore
    ) -> Iterator[dg.MaterializeResult[Any]]:
        with metrics.publishing(context.log), PartitionRun(context, scope) as run:
            run.report_each(lambda cell: _measure(context, config, scope, store, metrics, cell=cell))
            yield run.result()

    yield asset


def _measure(
    context: dg.AssetExecutionContext,
    config: LoaderBenchmarkConfig,
    scope: CellScope,
    store: ShardStore,
    metrics: MetricsStore,
    *,
    cell: Cell,
) -> PartitionReport:
    from tta_pipeline.extras.loader_bench.loaders import select_loaders
    from tta_pipeline.extras.loader_bench.measure import compare
    from tta_pipeline.results.result_files import Result, utc_now
    from tta_pipeline.util.software_versions import software_versions

    started_at = utc_now()
    folder = store.locations.shards(scope.benchmark.name, cell)
    rows = compare(str(folder), select_loaders(config.loaders), _settings(config), context.log.info)
    metrics.store(
        Result(
            kind="loaders",
            benchmark=scope.benchmark.name,
            key="loaders",
            fingerprint=None,  # never finished: each measurement is new
            run_id=context.run.run_id,
            started_at=started_at,
            finished_at=utc_now(),
            versions=software_versions(),
            loaders={
                "benchmark": scope.benchmark.file,
                "dataset": scope.benchmark.dataset.name,
                "corruption": cell.corruption,
                "severity": cell.severity,
                "loaders": [asdict(row) for row in rows],
            },
        )
    )
    return _report(rows, data_version=f"{context.run.run_id}-{cell.key}")


def _settings(config: LoaderBenchmarkConfig) -> "Settings":
    from tta_pipeline.extras.loader_bench.measure import Settings

    asked = {name: value for name, value in config.model_dump().items() if name not in ("loaders", "num_threads")}
    if config.num_threads:
        asked["num_threads"] = tuple(config.num_threads)
    return Settings(**asked)


def _report(rows: "Sequence[LoaderRow]", *, data_version: str) -> PartitionReport:
    from tta_pipeline.report.figure_style import as_png
    from tta_pipeline.report.tables import Table, as_markdown
    from tta_pipeline.report.time_figures import speed_bars

    fastest = max(rows, key=lambda row: row.images_per_s)
    speeds = {
        f"{row.loader}, {row.num_threads} threads, {row.output}": (
            row.images_per_s_min,
            row.images_per_s,
            row.images_per_s_max,
        )
        for row in rows
    }
    table = Table(columns=_SHOWN, rows=tuple(attrgetter(*_SHOWN)(row) for row in rows))
    return PartitionReport(
        summary=f"{fastest.loader} is fastest, {fastest.images_per_s:,.0f} images/s",
        metadata={
            "num_samples": fastest.num_samples,
            "images_per_s": {row.loader: row.images_per_s for row in rows},
            "loaders": dg.MetadataValue.md(as_markdown(table)),
            "chart": picture("images/s of each loader", as_png(speed_bars(speeds))),
        },
        data_version=data_version,
    )
