"""`<benchmark>/images`: the images of one cell on disk; images of digits are generated first."""

from collections.abc import Iterator
from typing import Any

import dagster as dg

from tta_pipeline.data.images.kinds.digits import DigitsSection, generate_cell
from tta_pipeline.defs.reporting import PartitionReport, PartitionRun
from tta_pipeline.defs.resources import ShardStore
from tta_pipeline.defs.scope import CellScope, Scope, Scopes, SetScope
from tta_pipeline.domain.cells import Cell
from tta_pipeline.domain.locations import Locations
from tta_pipeline.util.plurals import count_of


def images(scopes: Scopes) -> Iterator[dg.AssetsDefinition | dg.SourceAsset]:
    """Yield the assets of the source images: materialized if generated here, observed if already on disk."""
    return map(_generated_asset if scopes.benchmark.is_drawn else _observed_asset, scopes.shard_sets)


def _generated_asset(scope: Scope[Cell]) -> dg.AssetsDefinition:
    @scope.asset(
        "images",
        kinds={"jpeg"},
        code_version="1",
        description="Generated images, in the layout of ImageNet-C: `<corruption>/<severity>/<class>/<name>`. "
        "Results on them cannot be compared with published tables.",
    )
    def asset(context: dg.AssetExecutionContext, store: ShardStore) -> Iterator[dg.MaterializeResult[Any]]:
        with PartitionRun(context, scope) as run:
            run.report_each(lambda cell: _generate(scope, store.locations, cell))
            yield run.result()

    return asset


def _generate(scope: Scope[Cell], locations: Locations, cell: Cell) -> PartitionReport:
    source = scope.benchmark.images
    assert isinstance(source, DigitsSection)
    settings = source.settings
    root = locations.generated_source(scope.benchmark.name)
    locations.require_own(root / cell.path)
    generated = generate_cell(root, cell, settings)
    return PartitionReport(
        summary=f"{count_of(generated.num_images, 'image')} in {root / cell.path}",
        metadata={
            "num_images": generated.num_images,
            "folder": dg.MetadataValue.path(root / cell.path),
            "generated": True,
            "seed": settings.seed,
            "encoding": "lossless" if settings.jpeg_quality is None else f"jpeg {settings.jpeg_quality}",
        },
        data_version=generated.listing_version,
    )


def _observed_asset(scope: Scope[Cell]) -> dg.SourceAsset:
    @dg.observable_source_asset(
        key=scope.key("images"),
        group_name=scope.group(),
        partitions_def=scope.partitions,
        tags={"dagster/kind/webdataset" if scope.benchmark.has_shards else "dagster/kind/jpeg": ""},
        description=f"{'Shards' if scope.benchmark.has_shards else 'Images'} on disk. Observing them records a digest "
        "of names, sizes and modification times, so that shards made from other files are shown as stale.",
    )
    @scope.body
    def asset(store: ShardStore) -> dg.DataVersion | dg.DataVersionsByPartition:
        return _observe(scope, store.locations)

    return asset


def _observe(scope: Scope[Cell], locations: Locations) -> dg.DataVersion | dg.DataVersionsByPartition:
    from tta_pipeline.benchmarks.open_images import open_observed_images
    from tta_pipeline.errors import ImagesError

    source = open_observed_images(scope.benchmark, locations)
    if isinstance(scope, SetScope):
        return dg.DataVersion(source.version(scope.cell))
    assert isinstance(scope, CellScope), "images belong to one set, or to cells"
    versions = {}
    for cell in scope.cells:
        try:
            versions[cell.key] = source.version(cell)
        except ImagesError:
            # A cell that does not exist yet has no version; materializing its shards reports what is missing.
            continue
    return dg.DataVersionsByPartition(versions)
