"""Build the manifest of shards that this project wrote: read them back, and compare them with the writer's record."""

import hashlib
import time
from collections.abc import Iterator
from pathlib import Path

from tta_pipeline.data.labels.class_map import ClassMap
from tta_pipeline.errors import ManifestError
from tta_pipeline.shards.backfill_checksums import backfill_checksums
from tta_pipeline.shards.expected_shard_set import ANYTHING, ExpectedShardSet
from tta_pipeline.shards.manifest import WRITER_FILE, read_record
from tta_pipeline.shards.sample_index import keys_sha256
from tta_pipeline.shards.set_contents import (
    PublishedShardSet,
    SetContents,
    find_described_set,
    find_duplicate_keys,
    publish_contents,
    read_contents,
    refuse_problems,
    shard_differences,
)
from tta_pipeline.shards.set_facts import (
    Manifest,
    SetFacts,
    WriterRecord,
)
from tta_pipeline.util.identifiers import natural_order
from tta_pipeline.util.locks import locked_folder
from tta_pipeline.util.plurals import count_of
from tta_pipeline.util.processes import Workers
from tta_pipeline.util.progress import Progress

_COPIED_FIELDS = set(SetFacts.model_fields) - {"payload_bytes"}
"""Fields that a manifest copies from the writer's record."""

_NUM_ATTEMPTS = 20

_ATTEMPT_EVERY_S = 0.1


def publish_shard_set(
    folder: Path,
    class_map: ClassMap,
    progress: Progress,
    workers: Workers | None = None,
    *,
    belonging: ExpectedShardSet = ANYTHING,
    record: WriterRecord | None = None,
) -> PublishedShardSet:
    """Read the shards in *folder* back, compare them with the writer's record, and publish manifest and index.

    A manifest that already describes these shards is kept; missing checksums are added.

    Args:
        folder: Folder of the shards.
        class_map: Labels.
        progress: Counts samples and bytes as they are read.
        workers: Processes that each read one shard at a time, if that is faster; None: this process reads.
        belonging: Facts that the set must have.
        record: The writer's record, if the caller has read it; None: it is read here.

    Raises:
        ManifestError: there is no writer's record, the shards differ from it (the message names the first
            differences), or the record does not fit *belonging*.
        ClassMapError: a sample's class is not in the class map.
    """
    started = time.perf_counter()
    record = record or _read_writer_record(folder)
    belonging.require(record, folder / WRITER_FILE)
    shard_set = find_described_set(folder, class_map)
    if shard_set is not None and _matches_record(shard_set.manifest, record):
        shard_set = backfill_checksums(shard_set)
        progress.advance(record.num_samples, record.shard_bytes)
        return PublishedShardSet(shard_set=shard_set, was_built=False, wall_s=time.perf_counter() - started)
    try:
        shards = sorted(folder.glob("[!.]*.tar"), key=lambda path: natural_order(path.name))
        contents = read_contents(shards, progress, workers, is_foreign=False)
        refuse_problems(folder, [*_differences(record, contents), *find_duplicate_keys(contents)])
    except (ManifestError, FileNotFoundError):
        if _was_replaced(folder, record):
            return publish_shard_set(folder, class_map, progress, workers, belonging=belonging)
        raise
    facts = record.model_dump(include=_COPIED_FIELDS)
    with locked_folder(folder):
        is_anew = _was_replaced(folder, record)
        shard_set = None if is_anew else publish_contents(folder, contents, class_map, facts)
    if shard_set is None:
        return publish_shard_set(folder, class_map, progress, workers, belonging=belonging)
    return PublishedShardSet(shard_set=shard_set, was_built=True, wall_s=time.perf_counter() - started)


def _matches_record(manifest: Manifest, record: WriterRecord) -> bool:
    """Return whether *manifest* and *record* agree about the set."""
    return manifest.model_dump(include=_COPIED_FIELDS) == record.model_dump(include=_COPIED_FIELDS)


def _was_replaced(folder: Path, record: WriterRecord) -> bool:
    """Return whether another process has replaced the shards that were read with its own."""
    return _read_writer_record(folder) != record


def _read_writer_record(folder: Path) -> WriterRecord:
    """Return the writer's record in *folder*; try for two seconds, since another process may be replacing the folder.

    On a file system that cannot swap names, the folder is missing for a moment, and other hosts see it with a delay.
    """
    for _ in range(_NUM_ATTEMPTS):
        try:
            return read_record(folder / WRITER_FILE, WriterRecord)
        except ManifestError as error:
            if not isinstance(error.__cause__, OSError):
                raise
        time.sleep(_ATTEMPT_EVERY_S)
    return read_record(folder / WRITER_FILE, WriterRecord)


def _differences(record: WriterRecord, contents: SetContents) -> Iterator[str]:
    """Yield the differences between the shards and the writer's record."""
    yield from shard_differences(record.shards, contents)
    yield from _count_differences(record, contents)


def _count_differences(record: WriterRecord, contents: SetContents) -> Iterator[str]:
    if len(contents.samples) != record.source.num_taken:
        yield (
            f"the shards have {count_of(len(contents.samples), 'sample')}; expected {record.source.num_taken}, as in "
            "the source"
        )
    if keys_sha256(contents.keys) != record.order.sha256:
        yield f"the order of the keys hashes to {keys_sha256(contents.keys)}; expected {record.order.sha256}"
    payloads = hashlib.sha256(b"".join(sample.sha256 for sample in contents.samples)).hexdigest()
    if payloads != record.payloads_sha256:
        yield f"the images hash to {payloads}; expected {record.payloads_sha256}, as when they were written"
