"""`<benchmark>/tar_shards`: the images of one cell as tar shards, published atomically."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import dagster as dg

from tta_pipeline.defs.reporting import PartitionReport, PartitionRun
from tta_pipeline.defs.resources import ShardStore
from tta_pipeline.defs.scope import Scope, Scopes
from tta_pipeline.domain.cells import Cell
from tta_pipeline.domain.locations import Locations
from tta_pipeline.util.plurals import count_of
from tta_pipeline.util.short_lists import abbreviate_list

if TYPE_CHECKING:
    from tta_pipeline.data.images.existing_shards import ExistingShards
    from tta_pipeline.data.images.remote_shards import RemoteShards
    from tta_pipeline.shards.conversion import CellTask, Conversion
    from tta_pipeline.shards.expected_shard_set import ExpectedShardSet
    from tta_pipeline.util.processes import Workers


def tar_shards(scopes: Scopes) -> Iterator[dg.AssetsDefinition]:
    """Yield the assets of the shards: written here, or links to shards made by others."""
    return map(_linked_asset if scopes.benchmark.has_shards else _written_asset, scopes.shard_sets)


def _written_asset(scope: Scope[Cell]) -> dg.AssetsDefinition:
    @scope.asset(
        "tar_shards",
        deps=[scope.key("images")],
        kinds={"webdataset"},
        code_version="1",
        description="WebDataset tar shards of the original images. Bytes are unchanged; the order is permuted by the "
        "recorded seed. The cell's folder appears whole or not at all; unchanged shards are not rewritten.",
    )
    def asset(context: dg.AssetExecutionContext, store: ShardStore) -> Iterator[dg.MaterializeResult[Any]]:
        from tta_pipeline.shards.conversion import benchmark_conversion
        from tta_pipeline.util.progress import log_reporter

        conversion = benchmark_conversion(scope.benchmark, store.locations, log_reporter(context.log.info))
        with (
            PartitionRun(context, scope) as run,
            store.workers() as workers,
            conversion.session(run.keys) as session,
        ):
            run.report_each(lambda cell: _write(context, conversion, session.task(cell), workers))
            yield run.result()

    return asset


def _linked_asset(scope: Scope[Cell]) -> dg.AssetsDefinition:
    @scope.asset(
        "tar_shards",
        deps=[scope.key("images")],
        kinds={"webdataset"},
        code_version="1",
        description="Links to shards made by others, or their URLs. A URL has the server's facts about it; only "
        ".tar.gz files are copied, since they are unpacked here.",
    )
    def asset(context: dg.AssetExecutionContext, store: ShardStore) -> Iterator[dg.MaterializeResult[Any]]:
        with PartitionRun(context, scope) as run:
            run.report_each(lambda cell: _link(scope, store.locations, cell))
            yield run.result()

    return asset


def _link(scope: Scope[Cell], locations: Locations, cell: Cell) -> PartitionReport:
    from tta_pipeline.benchmarks.open_images import open_observed_images
    from tta_pipeline.data.images.existing_shards import ExistingShards, version_with_ids
    from tta_pipeline.data.images.remote_shards import RemoteShards
    from tta_pipeline.data.images.shard_files import find_shard_files, link_shards, shards_version
    from tta_pipeline.shards.expected_shard_set import expected_for_cell

    folder = locations.shards(scope.benchmark.name, cell)
    locations.require_own(folder)
    source = open_observed_images(scope.benchmark, locations)
    if isinstance(source, RemoteShards):
        return _locate(source, folder, cell)
    assert isinstance(source, ExistingShards)
    is_of_other_shards = _describes_other_shards(
        folder, expected_for_cell(locations, scope.benchmark.name, cell), source, cell
    )
    was_linked = link_shards(source.shards(cell), folder, anew=is_of_other_shards)
    sizes = [path.stat().st_size for path in folder.glob("[!.]*.tar")]
    return PartitionReport(
        summary=f"{count_of(len(sizes), 'shard')} of {source.folder(cell)}, {'linked' if was_linked else 'unchanged'}",
        metadata={
            "num_shards": len(sizes),
            "shard_bytes": sum(sizes),
            "was_linked": was_linked,
            "source": dg.MetadataValue.path(source.folder(cell)),
            "folder": dg.MetadataValue.path(folder),
        },
        data_version=version_with_ids(shards_version(find_shard_files(folder)), source.names_by_id()),
    )


def _locate(source: "RemoteShards", folder: Path, cell: Cell) -> PartitionReport:
    """Record the URLs of the shards of *cell*, and the server's facts about each."""
    from tta_pipeline.data.images.remote_shards import write_remote_cell

    found = source.at(cell)
    was_located = write_remote_cell(found, folder)
    return PartitionReport(
        summary=f"{count_of(len(found.shards), 'shard')} at {found.shards[0].url} ..., "
        f"{'located' if was_located else 'unchanged'}",
        metadata={
            "num_shards": len(found.shards),
            "shard_bytes": sum(shard.size_bytes for shard in found.shards),
            "was_linked": was_located,
            "source": found.shards[0].url.rpartition("/")[0],
            "has_manifest": found.manifest is not None,
            "folder": dg.MetadataValue.path(folder),
        },
        data_version=found.version,
    )


def _describes_other_shards(folder: Path, belonging: "ExpectedShardSet", source: "ExistingShards", cell: Cell) -> bool:
    """Return whether the manifest in *folder* describes shards that differ from the source's current shards.

    If so, linking the shards again removes the manifest; nothing else removes one that does not fit its shards.
    """
    from tta_pipeline.errors import ManifestError
    from tta_pipeline.shards.manifest import MANIFEST_FILE, read_manifest

    try:
        manifest = read_manifest(folder, belonging)
    except ManifestError:
        return (folder / MANIFEST_FILE).exists()
    return manifest.source.version != source.version(cell)


def _write(
    context: dg.AssetExecutionContext, conversion: "Conversion", task: "CellTask", workers: "Workers"
) -> PartitionReport:
    from tta_pipeline.shards.conversion import convert

    converted = convert(task, conversion.progress, workers)
    record = converted.record
    if left_out := record.source.left_out:
        some = f"; such as {abbreviate_list(list(map(str, converted.strays)))}" if converted.strays else ""
        context.log.warning(f"{task.target.folder}: left out: {left_out}{some}")
    images_per_s = record.num_samples / record.wall_s
    did = f"written at {images_per_s:,.0f} images/s" if converted.was_written else "unchanged"
    return PartitionReport(
        summary=f"{count_of(record.num_samples, 'image')} in {count_of(len(record.shards), 'shard')}, {did}",
        metadata={
            "num_images": record.num_samples,
            "num_shards": len(record.shards),
            "payload_bytes": record.payload_bytes,
            "shard_bytes": record.shard_bytes,
            "images_per_s": images_per_s,
            "mb_per_s": record.payload_bytes / record.wall_s / 1e6,
            "num_hidden": record.source.num_hidden,
            "num_strays": record.source.num_strays,
            "num_skipped": len(record.source.skipped),
            "num_foreign": record.source.num_foreign,
            "was_written": converted.was_written,
            "folder": dg.MetadataValue.path(task.target.folder),
        },
        data_version=record.fingerprint,
    )
