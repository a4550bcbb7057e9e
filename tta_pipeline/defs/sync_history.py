"""Synchronise Dagster's history with files that were made outside it, such as by cluster jobs without a history.

The files are the source of truth: manifests, weights and results.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import dagster as dg

from tta_pipeline.benchmarks.benchmark import Benchmark
from tta_pipeline.defs.evaluation import data_version_of
from tta_pipeline.defs.reporting import known_version, version_tags
from tta_pipeline.defs.scope import asset_key
from tta_pipeline.domain.cells import Cell, parse_key
from tta_pipeline.domain.locations import Locations
from tta_pipeline.errors import ManifestError, PartitionKeyError, RecordError
from tta_pipeline.evaluation.experiment_results import ExperimentResults
from tta_pipeline.evaluation.work.pieces import Piece
from tta_pipeline.extras.cluster.under_way import SHARD_SET_KINDS, AssetName
from tta_pipeline.results.evaluation_record import SHOWN_OF_SEGMENT, mean_error
from tta_pipeline.shards.expected_shard_set import expected_for_cell
from tta_pipeline.util.files import hash_file
from tta_pipeline.util.progress import Progress

if TYPE_CHECKING:
    from tta_pipeline.defs.private_dagster import AssetGraph, RawMetadataValue


class _Output(NamedTuple):
    """The output of one partition of an asset, as found on disk."""

    data_version: str
    metadata: "Mapping[str, RawMetadataValue]"


def sync_history(
    instance: dg.DagsterInstance,
    graph: "AssetGraph",
    benchmark: Benchmark,
    locations: Locations,
    *,
    places: Sequence[tuple[str, str]],
    tell: Callable[[str], None],
) -> int:
    """Report the files at *places* to *instance*, and return the number of places that it did not know yet.

    Args:
        instance: History to report to.
        graph: Graph of all assets.
        benchmark: Benchmark of the places.
        locations: Where its files lie.
        places: Finished assets with their partition keys, as in `Piece.places`; assets that the benchmark file no
            longer defines are skipped.
        tell: Called with progress messages.
    """
    progress = Progress(tell, what="telling Dagster", total=len(places), unit="partitions")
    known = graph.get_all_asset_keys()
    num_new = 0
    for asset, partition in places:
        key = asset_key(benchmark, asset)
        made = _find_output(benchmark, locations, asset, partition or None) if key in known else None
        num_new += made is not None and _report_if_new(instance, graph, key, partition or None, made)
        progress.advance(1)
    return num_new


def covered_places(graph: "AssetGraph", benchmark: Benchmark, piece: Piece) -> Iterator[tuple[str, str]]:
    """Yield every place that a run of *piece* covered; its range may hold more keys than the piece names.

    Assets and keys that the benchmark file no longer defines are left out.
    """
    for asset in piece.assets:
        key = asset_key(benchmark, asset)
        partitions = graph.get(key).partitions_def if graph.has(key) else None
        if not piece.keys:
            yield asset, ""
        elif partitions and all(partitions.has_partition_key(each) for each in (piece.keys[0], piece.keys[-1])):
            covered = partitions.get_partition_keys_in_range(dg.PartitionKeyRange(piece.keys[0], piece.keys[-1]))
            yield from ((asset, each) for each in covered)


def _find_output(benchmark: Benchmark, locations: Locations, asset: str, partition: str | None) -> _Output | None:
    """Return the output on disk at *partition* of *asset*; None if it is unfinished or cannot be identified."""
    kind, of, beside = AssetName.parse(asset)
    try:
        if kind == "evaluation":
            return _evaluation_output(benchmark, locations, of, beside.key if beside else partition or "all")
        if kind == "source_model":
            return _source_model_output(benchmark, locations, of or next(iter(benchmark.trained_models)))
        if kind in SHARD_SET_KINDS:
            cell = beside or parse_key(partition or "", benchmark.cells)
            return _shard_output(benchmark, locations, kind, cell)
    except (ManifestError, PartitionKeyError, RecordError):
        return None
    return _report_output(locations.report(benchmark.name) / "index.html")


def _evaluation_output(benchmark: Benchmark, locations: Locations, experiment_name: str, key: str) -> _Output | None:
    results = ExperimentResults(benchmark=benchmark, experiment_name=experiment_name, locations=locations)
    known = [each for each in results.keys if each.key == key]
    if not known:  # a severity that the experiment leaves out
        return None
    rows = results.rows(known[0])
    columns: Mapping[str, Any] = rows[0].by_column()
    shown = {name: columns[name] for name in SHOWN_OF_SEGMENT} if len(rows) == 1 else {}
    return _Output(
        data_version=data_version_of(rows),
        metadata={
            **{name: value for name, value in shown.items() if value is not None},
            "error": mean_error(rows),
            "num_samples": sum(row.scores.num_samples for row in rows),
            "wall_s": sum(row.time.wall_s for row in rows),
            "device": ", ".join(dict.fromkeys(row.machine.device for row in rows)),
        },
    )


def _shard_output(benchmark: Benchmark, locations: Locations, kind: str, cell: Cell) -> _Output:
    from tta_pipeline.shards.manifest import WRITER_FILE, read_manifest, read_record
    from tta_pipeline.shards.set_facts import WriterRecord

    folder = locations.shards(benchmark.name, cell)
    manifest = read_manifest(folder, expected_for_cell(locations, benchmark.name, cell))
    writer = read_record(folder / WRITER_FILE, WriterRecord) if kind == "tar_shards" else None
    if kind == "source_split" or (kind == "tar_shards" and writer is None):
        version = manifest.source.version
    else:
        version = writer.fingerprint if writer else manifest.sha256
    return _Output(
        data_version=version,
        metadata={"num_samples": manifest.num_samples, "folder": dg.MetadataValue.path(folder)},
    )


def _source_model_output(benchmark: Benchmark, locations: Locations, model: str) -> _Output | None:
    from tta_pipeline.models.trained_models import read_source_model_facts

    path = locations.source_model(benchmark.name, model)
    facts = read_source_model_facts(path)
    if facts is None:
        return None
    return _Output(data_version=facts.weights_sha256, metadata={"path": dg.MetadataValue.path(path)})


def _report_output(page: Path) -> _Output | None:
    if not page.exists():
        return None
    sha256 = hash_file(page)
    return _Output(data_version=sha256, metadata={"report": dg.MetadataValue.path(page)})


def _report_if_new(
    instance: dg.DagsterInstance, graph: "AssetGraph", key: dg.AssetKey, partition: str | None, made: _Output
) -> bool:
    """Report *made* unless the newest data version in *instance* is the same; return whether it was reported."""
    record = instance.get_latest_data_version_record(key, is_source=False, partition_key=partition)
    if known_version(record) == made.data_version:
        return False
    instance.report_runless_asset_event(
        dg.AssetMaterialization(
            asset_key=key,
            partition=partition,
            metadata=made.metadata,
            tags=version_tags(instance, graph, key, partition, made.data_version),
        )
    )
    return True
