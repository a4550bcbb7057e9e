"""The manifest's own reading of the shards, by other code than wrote them."""

import hashlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from tta_pipeline.errors import ManifestError
from tta_pipeline.progress import Progress
from tta_pipeline.shards.manifest import (
    SAMPLES_SCHEMA,
    WRITER_FILE,
    Manifest,
    SampleIndex,
    ShardFacts,
    ShardSet,
    WriterRecord,
    keys_sha256,
    publish_manifest,
    read_record,
)
from tta_pipeline.shards.naming import sample_key, source_name
from tta_pipeline.shards.tar import Member, TarReader
from tta_pipeline.sources.class_map import ClassMap


@dataclass(frozen=True, kw_only=True, slots=True)
class Sample:
    """One sample as found in a shard."""

    key: str
    source_name: str
    label: int
    shard: int
    offset: int
    size_bytes: int
    sha256: bytes


@dataclass(frozen=True, kw_only=True)
class Published:
    """A shard set with its manifest, and how it came to be."""

    shard_set: ShardSet
    was_built: bool
    wall_s: float
    """Seconds for reading back, comparing and publishing; for comparing alone if nothing had to be built."""


def publish_shard_set(folder: Path, class_map: ClassMap, progress: Progress) -> Published:
    """Read the shards in *folder* back, compare them with the writer's record, and publish manifest and index.

    A manifest that describes these shards already stays as it is.

    Raises:
        ManifestError: there is no writer's record, or the shards are not what it says; every difference is named.
        ClassMapError: a sample's class is not in the class map.
    """
    started = time.perf_counter()
    record = read_record(folder / WRITER_FILE, WriterRecord)
    shard_set = _described(folder, record, class_map)
    was_built = shard_set is None
    if shard_set is None:
        shard_set = _read_back(folder, record, class_map, progress)
    else:
        progress.advance(record.num_samples, record.shard_bytes)
    return Published(shard_set=shard_set, was_built=was_built, wall_s=time.perf_counter() - started)


def _described(folder: Path, record: WriterRecord, class_map: ClassMap) -> ShardSet | None:
    try:
        shard_set = ShardSet.open(folder)
        shard_set.require_intact()
    except ManifestError:
        return None
    same = shard_set.manifest.shards == record.shards and shard_set.manifest.class_map_sha256 == class_map.sha256
    return shard_set if same else None


def _read_back(folder: Path, record: WriterRecord, class_map: ClassMap, progress: Progress) -> ShardSet:
    samples: list[Sample] = []
    shards: list[ShardFacts] = []
    paths = sorted(folder.glob("*.tar"))
    for number, path in enumerate(paths):
        found, shard = _read_shard(path, number, class_map, progress)
        samples += found
        shards.append(shard)
    problems = [*_differences(record, shards), *_sample_problems(record, samples)]
    if problems:
        raise ManifestError(
            f"{folder}: {'; '.join(problems)}; as {WRITER_FILE} says. Materialize the tar_shards of this cell again"
        )
    index = SampleIndex(table=_table(samples))
    facts = record.model_dump(
        exclude={"format", "version", "fingerprint", "wall_s", "payload_bytes", "payloads_sha256"}
    )
    manifest = Manifest(
        **facts,
        payload_bytes=sum(sample.size_bytes for sample in samples),
        classes=class_map.classes,
        samples_sha256=hashlib.sha256(index.encoded()).hexdigest(),
    )
    return publish_manifest(folder, manifest, index)


def _read_shard(path: Path, number: int, class_map: ClassMap, progress: Progress) -> tuple[list[Sample], ShardFacts]:
    samples: list[Sample] = []
    digest = hashlib.sha256()
    num_bytes = 0
    with path.open("rb", buffering=2**20) as file:
        reader = TarReader(path, file)
        for member, raw in reader.members():
            digest.update(raw)
            num_bytes += len(raw)
            samples.append(_sample(path, member, shard=number, class_map=class_map))
            progress.advance(1, len(raw))
        rest = reader.rest()
    digest.update(rest)
    shard = ShardFacts(
        name=path.name, num_samples=len(samples), shard_bytes=num_bytes + len(rest), sha256=digest.hexdigest()
    )
    return samples, shard


def _sample(path: Path, member: Member, *, shard: int, class_map: ClassMap) -> Sample:
    name = source_name(member.name)
    class_name = name.rpartition("/")[0]
    class_map.require([class_name], where=path)
    return Sample(
        key=sample_key(member.name),
        source_name=name,
        label=class_map.labels[class_name],
        shard=shard,
        offset=member.offset,
        size_bytes=len(member.data),
        sha256=hashlib.sha256(member.data).digest(),
    )


def _differences(record: WriterRecord, found: Sequence[ShardFacts]) -> Iterator[str]:
    expected_by_name = {shard.name: shard for shard in record.shards}
    found_by_name = {shard.name: shard for shard in found}
    for name in sorted(expected_by_name.keys() | found_by_name.keys()):
        expected, here = expected_by_name.get(name), found_by_name.get(name)
        if expected is None:
            yield f"found {name}; expected no such shard"
        elif here is None:
            yield f"{name} is missing; expected {expected.shard_bytes} bytes"
        elif here != expected:
            yield (
                f"{name} has {here.num_samples} samples, {here.shard_bytes} bytes, sha256 {here.sha256}; expected "
                f"{expected.num_samples} samples, {expected.shard_bytes} bytes, sha256 {expected.sha256}"
            )


def _sample_problems(record: WriterRecord, samples: Sequence[Sample]) -> Iterator[str]:
    keys = [sample.key for sample in samples]
    if len(set(keys)) != len(keys):
        twice = next(key for key in keys if keys.count(key) > 1)
        yield f"key {twice} stands {keys.count(twice)} times; expected once"
    if len(keys) != record.source.num_images:
        yield f"found {len(keys)} samples; expected the source's {record.source.num_images}"
    payloads = hashlib.sha256(b"".join(sample.sha256 for sample in samples)).hexdigest()
    if payloads != record.payloads_sha256:
        yield f"found images that hash to {payloads}; expected {record.payloads_sha256} as they were read"
    if keys_sha256(keys) != record.order.sha256:
        yield f"found the keys in an order that hashes to {keys_sha256(keys)}; expected {record.order.sha256}"


def _table(samples: Sequence[Sample]) -> pa.Table:
    columns = {name: [getattr(sample, name) for sample in samples] for name in SAMPLES_SCHEMA.names}
    return pa.table(columns, schema=SAMPLES_SCHEMA)
