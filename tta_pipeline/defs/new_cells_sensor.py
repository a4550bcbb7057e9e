"""Sensor for new cells: a new (corruption, severity) folder, or a new or changed archive or array."""

import json
from pathlib import Path

import dagster as dg

from tta_pipeline.benchmarks.benchmark import Benchmark
from tta_pipeline.benchmarks.cell_ranges import cell_ranges
from tta_pipeline.defs.in_process import range_tags
from tta_pipeline.defs.resources import ShardStore
from tta_pipeline.defs.scope import CellScope
from tta_pipeline.domain.locations import Locations

_INTERVAL_S = 60
Stamps = dict[str, list[list[int]]]


def new_cells_sensor(benchmark: Benchmark) -> dg.SensorDefinition:
    """Return the sensor that watches the source locations of the cells of *benchmark*.

    It reads only names, sizes and modification times. A cell counts as complete when these are the same twice in a
    row, so a copy or download in progress is left alone.
    """
    scope = CellScope(benchmark=benchmark)
    shards = [scope.key("tar_shards"), scope.key("shard_manifest")]
    source = scope.key("images")

    @dg.sensor(
        name=f"{benchmark.dagster_name}__new_cells",
        # Not `target`: for the job that it makes, Dagster warns that an observed asset has no backfill policy.
        asset_selection=dg.AssetSelection.assets(source, *shards),
        minimum_interval_seconds=_INTERVAL_S,
        default_status=dg.DefaultSensorStatus.STOPPED,
        description="Observes the source and makes the shards of cells whose folder or archive is new.",
    )
    def sensor(context: dg.SensorEvaluationContext, store: ShardStore) -> dg.SensorResult | dg.SkipReason:
        found = source_stamps(benchmark)
        seen, taken = (
            json.loads(context.cursor)
            if context.cursor
            else ({}, _stamps_of_sharded(benchmark, store.locations, found))
        )
        ripe = [
            cell
            for cell in benchmark.cells
            if found.get(cell.key) not in (None, taken.get(cell.key)) and found[cell.key] == seen.get(cell.key)
        ]
        context.update_cursor(json.dumps([found, taken | {cell.key: found[cell.key] for cell in ripe}]))
        if not ripe:
            return dg.SkipReason(f"found no new cell; {len(found)} of {len(benchmark.cells)} are there")
        requests = [dg.RunRequest(asset_selection=[source])]
        for found_together in cell_ranges(benchmark, ripe):
            tags = range_tags([cell.key for cell in found_together])
            requests.append(dg.RunRequest(asset_selection=shards, tags=tags))
        return dg.SensorResult(run_requests=requests)

    return sensor


def source_stamps(benchmark: Benchmark) -> Stamps:
    """Return the size and modification time of each source file, for the cells whose source files all exist."""
    places = {cell.key: benchmark.images.places(cell, benchmark.dataset) for cell in benchmark.cells}
    known = {path: _stamp(path) for paths in places.values() for path in paths}
    found = {key: [stamp for path in paths if (stamp := known[path])] for key, paths in places.items()}
    return {key: there for key, there in found.items() if there and len(there) == len(places[key])}


def _stamps_of_sharded(benchmark: Benchmark, locations: Locations, found: Stamps) -> Stamps:
    """Return the stamps in *found* of cells that already have shards at the sensor's first evaluation."""
    there = {cell.key for cell in benchmark.cells if locations.shards(benchmark.name, cell).is_dir()}
    return {key: stamp for key, stamp in found.items() if key in there}


def _stamp(path: Path) -> list[int] | None:
    try:
        status = path.stat()
        # A folder's mtime changes with its entries; counting them also shows a second change within one clock tick.
        size = sum(1 for _ in path.iterdir()) if path.is_dir() else status.st_size
    except OSError:
        return None
    return [size, status.st_mtime_ns] if size else None
