"""`<benchmark>/shard_manifest`: the contents of one cell's shards, verified by reading them back, and its checks."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import dagster as dg

from tta_pipeline.defs.automation import out_of_date_condition
from tta_pipeline.defs.reporting import CheckReport, CheckRun, PartitionReport, PartitionRun, define_checks
from tta_pipeline.defs.resources import MetricsStore, ShardStore
from tta_pipeline.defs.scope import Scope, Scopes
from tta_pipeline.defs.shard_set_reporting import record_shard_set
from tta_pipeline.domain.cells import Cell
from tta_pipeline.domain.locations import Locations

if TYPE_CHECKING:
    from tta_pipeline.benchmarks.benchmark import Benchmark
    from tta_pipeline.data.labels.class_map import ClassMap
    from tta_pipeline.shards.expected_shard_set import ExpectedShardSet
    from tta_pipeline.shards.set_contents import PublishedShardSet
    from tta_pipeline.shards.set_facts import WriterRecord
    from tta_pipeline.util.processes import Workers

SHARDS_MATCH = "shards_match_manifest"
SOURCE_MATCHES = "source_count_equals_manifest"
CLASSES_PRESENT = "every_class_present"


def shard_manifest(scopes: Scopes) -> Iterator[dg.AssetsDefinition]:
    """Yield the asset of each manifest, and its checks against shards, source and class map."""
    for scope in scopes.shard_sets:
        yield _asset(scope)
        yield _checks(scope)


def _asset(scope: Scope[Cell]) -> dg.AssetsDefinition:
    @scope.asset(
        "shard_manifest",
        deps=[scope.key("tar_shards")],
        kinds={"parquet"},
        code_version="1",
        automation_condition=out_of_date_condition(),
        description="Index of the shards, read back from the tars. Key, source name, label, shard, byte offset, "
        "size and sha256 of each sample, read by code other than the writer of the shards.",
    )
    def asset(
        context: dg.AssetExecutionContext, store: ShardStore, metrics: MetricsStore
    ) -> Iterator[dg.MaterializeResult[Any]]:
        with metrics.publishing(context.log), PartitionRun(context, scope) as run, store.workers() as workers:
            run.report_each(lambda cell: _publish(context, scope, store.locations, cell=cell, workers=workers))
            for sentence in _say_uneven(scope.benchmark, store.locations, run.keys):
                context.log.warning(sentence)
            yield run.result()

    return asset


def _checks(scope: Scope[Cell]) -> dg.AssetChecksDefinition:
    key = scope.key("shard_manifest")
    descriptions = {
        SHARDS_MATCH: "Every shard on disk is hashed again and equals the manifest in name, size and sha256; the "
        "manifest has this cell, benchmark and class map.",
        SOURCE_MATCHES: "The source has not changed since it was converted, and the manifest has as many samples.",
        CLASSES_PRESENT: "Every class of the class map has at least one sample.",
    }

    @define_checks(scope, key, descriptions)
    def checks(context: dg.AssetCheckExecutionContext, store: ShardStore) -> Iterator[Any]:
        run = CheckRun(context, scope, key)
        for cell in run.keys:
            with run.hinting(cell):
                reports = _check(scope, store.locations, cell)
            yield from run.results(cell, reports)
        yield from run.outputs()

    return checks


def _publish(
    context: dg.AssetExecutionContext,
    scope: Scope[Cell],
    locations: Locations,
    *,
    cell: Cell,
    workers: "Workers",
) -> PartitionReport:
    from tta_pipeline.benchmarks.open_images import load_class_map
    from tta_pipeline.results.result_files import utc_now
    from tta_pipeline.shards.benchmark_expectation import expected_for_benchmark
    from tta_pipeline.shards.expected_shard_set import expected_for_cell
    from tta_pipeline.shards.manifest import WRITER_FILE, read_record
    from tta_pipeline.shards.set_facts import WriterRecord

    benchmark, started_at = scope.benchmark, utc_now()
    folder = locations.shards(benchmark.name, cell)
    locations.require_own(folder)
    if benchmark.images.is_remote:
        published = _adopt_remote(scope, locations, folder, cell, context.log.info)
        expected_for_benchmark(benchmark, locations, cell).require(published.shard_set.manifest, folder)
        return record_shard_set(context, scope, published=published, record=None, started_at=started_at)
    # Read before the classes: if the source is missing too, the error must be about the shards.
    record = None if benchmark.has_shards else read_record(folder / WRITER_FILE, WriterRecord)
    class_map = load_class_map(benchmark, locations)
    belonging = expected_for_cell(locations, benchmark.name, cell)
    if record is None:
        published = _adopt_local(
            folder, cell, class_map, benchmark=benchmark, locations=locations, say=context.log.info, workers=workers
        )
        expected_for_benchmark(benchmark, locations, cell).require(published.shard_set.manifest, folder)
    else:
        expected_for_benchmark(benchmark, locations, cell).require(record, folder / WRITER_FILE)
        published = _build_own_manifest(folder, record, class_map, belonging, say=context.log.info, workers=workers)
    return record_shard_set(context, scope, published=published, record=record, started_at=started_at)


def _say_uneven(benchmark: "Benchmark", locations: Locations, cells: Sequence[Cell]) -> Iterator[str]:
    """Yield a sentence for each of *cells* whose images differ from most; for all cells once all have a manifest."""
    from tta_pipeline.shards.manifest import MANIFEST_FILE
    from tta_pipeline.shards.uneven_cells import find_uneven_cells

    are_all_there = all((locations.shards(benchmark.name, cell) / MANIFEST_FILE).exists() for cell in benchmark.cells)
    for cell, sentence in find_uneven_cells(benchmark, locations).items():
        if are_all_there or cell in cells:
            yield sentence


def _build_own_manifest(
    folder: Path,
    record: "WriterRecord",
    class_map: "ClassMap",
    belonging: "ExpectedShardSet",
    *,
    say: Callable[[str], None],
    workers: "Workers",
) -> "PublishedShardSet":
    """Read our own shards back and compare them with their writer's record.

    If they differ, the record is removed, so that `tar_shards` writes the shards again. The record of another cell
    stays: it is correct but in the wrong place, and `tar_shards` does not mistake it for this cell's record.
    """
    from tta_pipeline.errors import ManifestError
    from tta_pipeline.shards.build_manifest import publish_shard_set
    from tta_pipeline.shards.manifest import WRITER_FILE
    from tta_pipeline.util.progress import Progress

    belonging.require(record, folder / WRITER_FILE)
    progress = Progress(say, what=record.cell.key, total=record.num_samples)
    try:
        return publish_shard_set(folder, class_map, progress, workers, belonging=belonging, record=record)
    except ManifestError:
        (folder / WRITER_FILE).unlink(missing_ok=True)
        raise


def _adopt_local(
    folder: Path,
    cell: Cell,
    class_map: "ClassMap",
    *,
    benchmark: "Benchmark",
    locations: Locations,
    say: Callable[[str], None],
    workers: "Workers",
) -> "PublishedShardSet":
    """Read shards made by others, which are their own source."""
    from tta_pipeline.benchmarks.open_images import open_observed_images
    from tta_pipeline.data.images.existing_shards import ExistingShards
    from tta_pipeline.data.images.shard_files import find_shard_files, shards_version
    from tta_pipeline.shards.adoption import adopt
    from tta_pipeline.util.progress import Progress

    progress = Progress(say, what=cell.key, total=0)
    version = shards_version(find_shard_files(folder))
    source = open_observed_images(benchmark, locations)
    assert isinstance(source, ExistingShards)
    published = adopt(
        folder,
        cell,
        progress,
        benchmark_name=benchmark.name,
        class_map=class_map,
        names_by_id=source.names_by_id(),
        version=version,
        workers=workers,
    )
    if left_out := published.describe_left_out():
        say(f"{cell.key}: left out, since they are neither images nor classes: {left_out}")
    return published


def _adopt_remote(
    scope: Scope[Cell], locations: Locations, folder: Path, cell: Cell, say: Callable[[str], None]
) -> "PublishedShardSet":
    """Build the manifest of shards at URLs; they fix the class map if nothing has fixed it before."""
    from tta_pipeline.benchmarks.open_images import load_class_map
    from tta_pipeline.shards.adopt_remote import adopt_remote
    from tta_pipeline.util.progress import Progress

    def pin_classes(find_classes: Callable[[], tuple[str, ...]]) -> "ClassMap":
        return load_class_map(scope.benchmark, locations, find_classes=find_classes)

    progress = Progress(say, what=cell.key, total=0)
    return adopt_remote(folder, cell, progress, benchmark_name=scope.benchmark.name, pin_classes=pin_classes)


def _check(scope: Scope[Cell], locations: Locations, cell: Cell) -> Sequence[CheckReport]:
    from tta_pipeline.benchmarks.open_images import open_observed_images
    from tta_pipeline.shards.benchmark_expectation import expected_for_benchmark
    from tta_pipeline.shards.shard_set import ShardSet
    from tta_pipeline.shards.verification import find_missing_classes, find_shard_problems

    shard_set = ShardSet.open(locations.shards(scope.benchmark.name, cell))
    problems = find_shard_problems(shard_set, expected_for_benchmark(scope.benchmark, locations, cell))
    source, num_samples = shard_set.manifest.source, shard_set.manifest.num_samples
    is_unchanged = open_observed_images(scope.benchmark, locations).version(cell) == source.version
    missing = find_missing_classes(shard_set)
    return (
        CheckReport(check=SHARDS_MATCH, passed=not problems, metadata={"problems": "; ".join(problems) or "none"}),
        CheckReport(
            check=SOURCE_MATCHES,
            passed=is_unchanged and source.num_taken == num_samples,
            metadata={
                "source_is_unchanged": is_unchanged,
                "num_source_images": source.num_images,
                "num_skipped": len(source.skipped),
                "num_foreign": source.num_foreign,
                "num_samples": num_samples,
            },
        ),
        CheckReport(check=CLASSES_PRESENT, passed=not missing, metadata={"missing": ", ".join(missing) or "none"}),
    )
