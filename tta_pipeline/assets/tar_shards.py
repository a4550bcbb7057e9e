"""`<benchmark>/tar_shards`: the images of one cell as tar shards, published whole."""

from collections.abc import Iterator
from typing import Any

import dagster as dg

from tta_pipeline.assets.reporting import CellReport, materialize_cells
from tta_pipeline.assets.scope import Scope
from tta_pipeline.locations import Locations
from tta_pipeline.partitions import Cell
from tta_pipeline.resources import ShardStore


def tar_shards(scope: Scope) -> dg.AssetsDefinition:
    """Return the asset of the shards."""

    @scope.asset(
        "tar_shards",
        deps=[scope.key("source_split")],
        kinds={"webdataset"},
        code_version="1",
        description="Plain WebDataset tar shards with the original image bytes, permuted by the recorded seed. The "
        "cell's folder appears whole or not at all; nothing is rewritten when nothing changed.",
    )
    def asset(context: dg.AssetExecutionContext, store: ShardStore) -> Iterator[dg.MaterializeResult[Any]]:
        yield from materialize_cells(context, scope, lambda cell: _write(context, scope, store.locations, cell))

    return asset


def _write(context: dg.AssetExecutionContext, scope: Scope, locations: Locations, cell: Cell) -> CellReport:
    from tta_pipeline.progress import Progress
    from tta_pipeline.shards.writing import write_shards
    from tta_pipeline.sources import open_source
    from tta_pipeline.sources.class_map import pin_class_map

    benchmark = scope.benchmark
    source = open_source(benchmark, locations)
    listing = source.listing(cell)
    target = locations.shards(benchmark.name, cell)
    record, was_written = write_shards(
        listing,
        target,
        benchmark=benchmark.name,
        source_kind=benchmark.source.kind,
        generated=benchmark.is_generated,
        class_map=pin_class_map(locations.class_map(benchmark.name), source.class_names),
        limits=benchmark.shards,
        progress=Progress(context.log.info, what=cell.key, num_images=len(listing.images)),
    )
    for stray in listing.strays[:20]:
        context.log.warning(f"{stray} is no image of a class folder and was passed over")
    images_per_s = record.num_samples / record.wall_s
    did = f"written at {images_per_s:,.0f} images/s" if was_written else "unchanged"
    return CellReport(
        summary=f"{record.num_samples:,} images in {len(record.shards)} shards, {did}",
        metadata={
            "num_images": record.num_samples,
            "num_shards": len(record.shards),
            "payload_bytes": record.payload_bytes,
            "shard_bytes": record.shard_bytes,
            "images_per_s": images_per_s,
            "mb_per_s": record.payload_bytes / record.wall_s / 1e6,
            "num_hidden": record.source.num_hidden,
            "num_strays": record.source.num_strays,
            "was_written": was_written,
            "folder": dg.MetadataValue.path(target),
        },
        data_version=record.fingerprint,
    )
