"""A shard set made from another one: a function applied to each image, another size or format, or label members."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from tta_pipeline.benchmarks.shard_settings import Transform
from tta_pipeline.data.labels.class_map import ClassMap
from tta_pipeline.data.sources.listing import Listing
from tta_pipeline.errors import ShardError
from tta_pipeline.shards.build_manifest import publish_shard_set
from tta_pipeline.shards.expected_shard_set import ANYTHING, ExpectedShardSet
from tta_pipeline.shards.set_contents import PublishedShardSet
from tta_pipeline.shards.set_facts import WriterRecord
from tta_pipeline.shards.shard_set import ShardSet
from tta_pipeline.shards.shard_set_writing import Target, expected_for_target, find_unchanged, write_shards
from tta_pipeline.shards.stored_images import stored_images
from tta_pipeline.shards.verification import find_shard_sets
from tta_pipeline.util.processes import Workers
from tta_pipeline.util.progress import Reporter, Step, quiet_reporter


@dataclass(frozen=True, kw_only=True)
class TransformResult:
    """The shard set that was made or already existed."""

    record: WriterRecord
    was_written: bool
    published: PublishedShardSet


class _TransformTask(NamedTuple):
    """One shard set to transform, in any process."""

    source: Path
    target: Path
    transform: Transform


def transform_shard_set(
    source: Path,
    target: Path,
    transform: Transform,
    progress: Reporter,
    workers: Workers | None = None,
    *,
    belonging: ExpectedShardSet = ANYTHING,
) -> TransformResult:
    """Write the samples of the shard set in *source*, changed, as a shard set into *target*, unless it exists.

    Args:
        source: Folder of a shard set.
        target: Folder of the new one, which appears whole or not at all.
        transform: Processing of the samples.
        progress: Reports progress on the images of each cell.
        workers: Processes that each write and read one shard at a time; None: this process does.
        belonging: Facts that the set in *source* must have.

    Raises:
        ManifestError: the shard set differs from its manifest, or does not fit *belonging*; or the new one differs from
            what was asked for.
        SourceError: an image is damaged.
        ShardError: the function failed, or the shards cannot be written.
    """
    shard_set = ShardSet.open(source, belonging)
    manifest = shard_set.manifest
    class_map = ClassMap(classes=manifest.classes)
    settings = transform.settings(num_shards=len(manifest.shards))
    place = Target(
        folder=target, benchmark_name=manifest.benchmark, source_kind="shards", generated=manifest.source.generated
    )
    decisive = (manifest.cell, manifest.sha256, class_map, settings)
    record = find_unchanged(place, *decisive)
    was_written = record is None
    if record is None:
        record = write_shards(
            Listing(cell=manifest.cell, root=source, images=stored_images(shard_set)),
            place,
            version=manifest.sha256,
            class_map=class_map,
            settings=settings,
            progress=progress(manifest.cell.key, manifest.num_samples),
            workers=workers,
        )
    report = progress(f"{manifest.cell.key} manifest", record.num_samples)
    # Another process may have put shards of other settings there since.
    published = publish_shard_set(target, class_map, report, workers, belonging=expected_for_target(place, *decisive))
    return TransformResult(record=record, was_written=was_written, published=published)


def transform_shard_sets(
    root: Path, output: Path, transform: Transform, *, jobs: int, progress: Reporter
) -> Iterator[Step[TransformResult]]:
    """Transform every shard set at or under *root* into the same relative path under *output*.

    With enough sets each process takes a whole set, otherwise one shard at a time.

    Raises:
        ManifestError: there is no shard set, or one differs from its manifest.
        ShardError: *output* is in *root*; or see `transform_shard_set`.
    """
    if output.resolve().is_relative_to(root.resolve()):
        raise ShardError(
            f"{output} is inside {root}; expected a folder outside, so that these shard sets stay as they are"
        )
    folders = find_shard_sets([root])
    pieces = [_TransformTask(folder, output / folder.relative_to(root), transform) for folder in folders]
    with Workers(jobs) as workers:
        every = (
            workers.map(_transform_in_worker, pieces)
            if 1 < jobs <= len(pieces)
            else (transform_shard_set(each.source, each.target, each.transform, progress, workers) for each in pieces)
        )
        for number, transformed in enumerate(every, start=1):
            yield Step(number, len(pieces), transformed)


def _transform_in_worker(work: _TransformTask) -> TransformResult:
    """Transform one shard set in a worker process."""
    return transform_shard_set(work.source, work.target, work.transform, quiet_reporter)
