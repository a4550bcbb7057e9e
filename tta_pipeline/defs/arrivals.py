"""`<benchmark>/stream/source_split`: the images that came on a day, and the sensor that notices new ones."""

import time
from collections.abc import Iterator
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING, Any

import dagster as dg

from tta_pipeline.benchmarks.benchmark import Benchmark
from tta_pipeline.benchmarks.watched_stream import stream_benchmark
from tta_pipeline.defs.reporting import PartitionReport, PartitionRun
from tta_pipeline.defs.resources import ShardStore
from tta_pipeline.defs.scope import DayScope, asset_key
from tta_pipeline.util.locations import Locations
from tta_pipeline.util.partitions import Cell

if TYPE_CHECKING:
    from tta_pipeline.extras.watching.look import Look

_INTERVAL_S = 60


def day_scope(benchmark: Benchmark, locations: Locations, resource_prefix: str = "") -> DayScope:
    """Return the scope of the images that arrive at the folder that *benchmark* watches, up to the present day."""
    assert benchmark.watch is not None, "a benchmark that watches a folder"
    return DayScope(
        benchmark=stream_benchmark(benchmark, locations, until=_today()),
        resource_prefix=resource_prefix,
        watch=benchmark.watch,
        read_by=(asset_key(benchmark, "shift_alarm"),) if benchmark.alarm else (),
    )


def arrivals(scope: DayScope) -> dg.AssetsDefinition:
    """Return the asset of the images of each day; materializing the present day looks at the watched folder."""

    @scope.asset(
        "source_split",
        kinds={"jpeg"},
        code_version="1",
        output_required=False,
        description="Images that came on the day, in UTC. Materializing the present day looks at the watched folder: "
        "each content that has not come before is copied, and so are late files. A day that is over stays as it is.",
    )
    def asset(context: dg.AssetExecutionContext, store: ShardStore) -> Iterator[dg.MaterializeResult[Any]]:
        with PartitionRun(context, scope) as run:
            looks = {cell: _look(context, scope, run) for cell in run.keys if cell.corruption == _today().isoformat()}
            if not any((scope.kept / cell.corruption).is_dir() for cell in run.keys):
                # What arrived was there before: nothing is left to do, and Dagster skips the other assets.
                context.log.info("no image of these days has come")
                return
            run.report_each(lambda cell: _report(scope, store.locations, cell, looks.get(cell)))
            yield run.result()

    return asset


def arrivals_sensor(scope: DayScope) -> dg.SensorDefinition:
    """Return the sensor that has new images of the watched folder taken in, sharded and evaluated."""
    names = [f"evaluation/{name}" for name in scope.benchmark.experiments]
    keys = [*(scope.key(name) for name in ("source_split", "tar_shards", "shard_manifest", *names)), *scope.read_by]

    @dg.sensor(
        name=f"{scope.benchmark.file}__arrivals",
        asset_selection=dg.AssetSelection.assets(*keys),
        minimum_interval_seconds=_INTERVAL_S,
        default_status=dg.DefaultSensorStatus.STOPPED,
        description="Takes in, shards and evaluates images that are new in the watched folder.",
    )
    def sensor() -> dg.RunRequest | dg.SkipReason:
        from tta_pipeline.extras.watching.look import find_arriving

        watch = scope.watch
        found = find_arriving(watch.root.expanduser(), scope.kept, settle_s=watch.settle_s, now_s=time.time())
        if _today() < watch.since:
            return dg.SkipReason(f"the first day is {watch.since}")
        if not found.settled:
            return dg.SkipReason(f"found no new image; {len(found.unsettled)} may still be written")
        day = _today().isoformat()
        # The same files ask for one run a day, however long it waits in a queue.
        return dg.RunRequest(run_key=f"{day} {found.sha256}", asset_selection=keys, partition_key=day)

    return sensor


def _report(scope: DayScope, locations: Locations, cell: Cell, look: "Look | None") -> PartitionReport:
    from tta_pipeline.benchmarks.open_source import open_source

    listing = open_source(scope.benchmark, locations).listing(cell)
    found = f", {look.num_new:,} of them new" if look else ""
    return PartitionReport(
        summary=f"{len(listing.images):,} images in {listing.root}{found}",
        metadata={
            "num_images": len(listing.images),
            "folder": dg.MetadataValue.path(listing.root),
            **({"num_new": look.num_new, "num_duplicates": look.num_duplicates} if look else {}),
            **({"num_unsettled": look.num_unsettled, "num_refused": len(look.refused)} if look else {}),
        },
        data_version=listing.version,
    )


def _look(context: dg.AssetExecutionContext, scope: DayScope, run: PartitionRun[Cell]) -> "Look":
    from tta_pipeline.extras.watching.look import take_in

    watch, day = scope.watch, _today().isoformat()
    with run.hinting(Cell(corruption=day, severity=0)):
        look = take_in(watch.root.expanduser(), scope.kept, day=day, settle_s=watch.settle_s, now_s=time.time())
    for refused in look.refused:
        context.log.warning(f"not taken in: {refused}")
    return look


def _today() -> date:
    """Return the present day in UTC, as Dagster's daily partitions are."""
    return datetime.now(UTC).date()
