"""The shard set that a benchmark file asks for: its place, and every setting that decides pixels or their order."""

from dataclasses import replace

from tta_pipeline.benchmarks.benchmark import Benchmark
from tta_pipeline.benchmarks.shard_settings import ShardSettings
from tta_pipeline.shards.expected_shard_set import ExpectedShardSet, expected_for_cell
from tta_pipeline.shards.manifest import MANIFEST_FILE, read_manifest
from tta_pipeline.shards.set_facts import StoredEncoding
from tta_pipeline.util.locations import Locations
from tta_pipeline.util.partitions import Cell
from tta_pipeline.util.source_code import source_sha256


def expected_for_benchmark(
    benchmark: Benchmark, locations: Locations, cell: Cell, transform: str | None = None
) -> ExpectedShardSet:
    """Return the facts that the file of *benchmark* now asks of the shards of *cell*, or of *transform*'s shards.

    Images that this project generates must have the file's present settings. The source itself is not read: it may be
    gone.

    Raises:
        ManifestError: the set before the transform is not the one that the file asks for.
        ClassMapError: the pinned class map is damaged.
    """
    place = expected_for_cell(locations, benchmark.name, cell)
    if transform is not None:
        settings = benchmark.transforms[transform].settings(num_shards=1)
        return _with_settings(place, settings, source_version=_version_before_transform(benchmark, locations, cell))
    if benchmark.shards is None:
        return place
    expected = _with_settings(place, benchmark.shard_settings_of(cell), source_version=None)
    return replace(expected, recipe=benchmark.source.recipe)


def encoding_of(settings: ShardSettings) -> StoredEncoding:
    """Return the encoding that shards with *settings* record in their manifest."""
    if not settings.changes_images:
        return StoredEncoding()
    return StoredEncoding(
        format=settings.format,
        resize=settings.resize,
        center_crop=settings.center_crop,
        quality=settings.quality if settings.format == "raw" else None,
        function=settings.function,
        function_sha256=source_sha256(settings.function) if settings.function else None,
    )


def _with_settings(place: ExpectedShardSet, settings: ShardSettings, *, source_version: str | None) -> ExpectedShardSet:
    encoding = encoding_of(settings).model_dump(mode="json", exclude_none=True)
    return replace(place, encoding=encoding, order=(settings.order, settings.seed), source_version=source_version)


def _version_before_transform(benchmark: Benchmark, locations: Locations, cell: Cell) -> str | None:
    """Return the identity of the set before the transform; None if that set no longer exists."""
    folder = locations.shards(benchmark.name, cell)
    if not (folder / MANIFEST_FILE).exists():
        return None
    return read_manifest(folder, expected_for_benchmark(benchmark, locations, cell)).sha256
