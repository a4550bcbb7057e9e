"""The shard set that a benchmark file defines: its place, and every setting that decides pixels or their order."""

from dataclasses import replace

from tta_pipeline.benchmarks.benchmark import Benchmark
from tta_pipeline.benchmarks.shard_settings import ShardSettings
from tta_pipeline.domain.cells import Cell
from tta_pipeline.domain.locations import Locations
from tta_pipeline.shards.expected_shard_set import ExpectedShardSet, expected_for_cell
from tta_pipeline.shards.set_facts import StoredEncoding
from tta_pipeline.util.source_code import source_sha256


def expected_for_benchmark(benchmark: Benchmark, locations: Locations, cell: Cell) -> ExpectedShardSet:
    """Return the facts that the current file of *benchmark* requires of the shards of *cell*.

    Images that this project generates must have the file's current settings. The source itself is not read, since it
    may have been removed.

    Raises:
        ClassMapError: the pinned class map is damaged.
    """
    place = replace(expected_for_cell(locations, benchmark.name, cell), num_samples=benchmark.num_published(cell))
    if benchmark.shards is None:
        return place
    settings = benchmark.shard_settings_of(cell)
    return replace(
        place,
        encoding=encoding_of(settings).model_dump(mode="json", exclude_none=True),
        order=(settings.order, settings.seed, delta_of(settings)),
        recipe=benchmark.images.recipe,
    )


def encoding_of(settings: ShardSettings) -> StoredEncoding:
    """Return the encoding that shards with *settings* record in their manifest."""
    if not settings.changes_images:
        return StoredEncoding()
    return StoredEncoding(
        format=settings.format,
        resize=settings.resize,
        interpolation=settings.interpolation if settings.resize else "bilinear",
        center_crop=settings.center_crop,
        quality=settings.quality if settings.format == "raw" else None,
        function=settings.function,
        function_sha256=source_sha256(settings.function) if settings.function else None,
    )


def delta_of(settings: ShardSettings) -> float | None:
    """Return the delta that shards with *settings* record in their manifest; only the Dirichlet order has one."""
    return settings.delta if settings.order == "dirichlet" else None
