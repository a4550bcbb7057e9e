"""The manifest's own reading of the shards, by other code than wrote them."""

import hashlib
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa

from tta_pipeline.errors import ManifestError
from tta_pipeline.partitions import Cell
from tta_pipeline.progress import Progress
from tta_pipeline.shards.images import read_image_header
from tta_pipeline.shards.manifest import (
    MANIFEST_FILE,
    SAMPLES_SCHEMA,
    WRITER_FILE,
    Manifest,
    SampleIndex,
    ShardFacts,
    ShardSet,
    SourceFacts,
    StoredOrder,
    WriterRecord,
    keys_sha256,
    publish_manifest,
    read_record,
)
from tta_pipeline.shards.naming import sample_key, source_name
from tta_pipeline.shards.tar import Member, TarReader
from tta_pipeline.sources.class_map import ClassMap

IMAGE_EXTENSIONS = frozenset({"jpg", "jpeg", "png", "bmp", "webp", "npy"})
LABEL_EXTENSIONS = frozenset({"cls", "json"})
"""All that a shard may hold; in particular nothing that a careless reader would execute."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Sample:
    """One sample as found in a shard."""

    key: str
    source_name: str
    class_name: str
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


@dataclass(frozen=True, kw_only=True)
class _Contents:
    """All that was read from the shards of a folder."""

    shards: tuple[ShardFacts, ...]
    samples: tuple[Sample, ...]

    @property
    def keys(self) -> list[str]:
        return [sample.key for sample in self.samples]

    @property
    def payload_bytes(self) -> int:
        return sum(sample.size_bytes for sample in self.samples)


def publish_shard_set(folder: Path, class_map: ClassMap, progress: Progress) -> Published:
    """Read the shards in *folder* back, compare them with the writer's record, and publish manifest and index.

    A manifest that describes these shards already stays as it is.

    Raises:
        ManifestError: there is no writer's record, or the shards are not what it says; every difference is named.
        ClassMapError: a sample's class is not in the class map.
    """
    started = time.perf_counter()
    record = read_record(folder / WRITER_FILE, WriterRecord)
    shard_set = _described(folder, class_map)
    was_built = shard_set is None or shard_set.manifest.shards != record.shards
    if shard_set is None or was_built:
        contents = _read(folder, progress, is_foreign=False)
        _refuse(folder, [*_differences(record, contents), *_doubled(contents)])
        facts = record.model_dump(include=set(Manifest.model_fields) - {"format", "version", "payload_bytes"})
        shard_set = _publish(folder, contents, class_map, facts)
    else:
        progress.advance(record.num_samples, record.shard_bytes)
    return Published(shard_set=shard_set, was_built=was_built, wall_s=time.perf_counter() - started)


def adopt(folder: Path, cell: Cell, progress: Progress, *, benchmark: str, class_map: ClassMap | None) -> Published:
    """Build the manifest of shards that somebody else made, reading every byte and rewriting none.

    The class of a sample is the folder in its name, or what its `.cls` member says.

    Args:
        folder: The shards.
        cell: What they hold.
        progress: Told of what is done.
        benchmark: What the manifest calls the data set.
        class_map: Labels; None: the sorted classes that are found.

    Raises:
        ManifestError: a shard is damaged, or a key stands twice.
        ClassMapError: a sample's class is not in the class map.
    """
    started = time.perf_counter()
    shard_set = _described(folder, class_map)
    was_built = shard_set is None
    if shard_set is None:
        contents = _read(folder, progress, is_foreign=True)
        _refuse(folder, [*_doubled(contents)] if contents.samples else ["found no sample; expected shards, *.tar"])
        class_map = class_map or ClassMap(classes=tuple(sorted({sample.class_name for sample in contents.samples})))
        version = hashlib.sha256("".join(shard.sha256 for shard in contents.shards).encode()).hexdigest()
        facts = {
            "benchmark": benchmark,
            "corruption": cell.corruption,
            "severity": cell.severity,
            "source": SourceFacts(
                kind="shards",
                generated=False,
                version=version,
                num_images=len(contents.samples),
                num_hidden=0,
                num_strays=0,
            ),
            "class_map_sha256": class_map.sha256,
            "order": StoredOrder(name="adopted", seed=0, sha256=keys_sha256(contents.keys)),
            "shards": contents.shards,
            "num_samples": len(contents.samples),
        }
        shard_set = _publish(folder, contents, class_map, facts)
    return Published(shard_set=shard_set, was_built=was_built, wall_s=time.perf_counter() - started)


def _described(folder: Path, class_map: ClassMap | None) -> ShardSet | None:
    """Return the shard set in *folder* if its manifest describes the shards as they are."""
    if not (folder / MANIFEST_FILE).exists():
        return None
    try:
        shard_set = ShardSet.open(folder)
        shard_set.require_intact()
    except ManifestError:
        return None
    names = {path.name for path in folder.glob("*.tar")}
    same_map = class_map is None or shard_set.manifest.class_map_sha256 == class_map.sha256
    return shard_set if same_map and names == {shard.name for shard in shard_set.manifest.shards} else None


def _publish(folder: Path, contents: _Contents, class_map: ClassMap, facts: dict[str, object]) -> ShardSet:
    class_map.require({sample.class_name for sample in contents.samples}, where=folder)
    index = SampleIndex(table=_table(contents.samples, class_map))
    manifest = Manifest.model_validate(
        {
            **facts,
            "payload_bytes": contents.payload_bytes,
            "classes": class_map.classes,
            "samples_sha256": hashlib.sha256(index.encoded()).hexdigest(),
        }
    )
    return publish_manifest(folder, manifest, index)


def _read(folder: Path, progress: Progress, *, is_foreign: bool) -> _Contents:
    """Read every shard; what others wrote is looked at as images too, which our writer does before it hashes."""
    shards: list[ShardFacts] = []
    samples: list[Sample] = []
    for number, path in enumerate(sorted(folder.glob("*.tar"))):
        facts, found = _read_shard(path, number, progress, is_foreign=is_foreign)
        shards.append(facts)
        samples += found
    return _Contents(shards=tuple(shards), samples=tuple(samples))


def _read_shard(path: Path, number: int, progress: Progress, *, is_foreign: bool) -> tuple[ShardFacts, list[Sample]]:
    name_of = _plain_name if is_foreign else source_name
    images: list[Sample] = []
    classes: dict[str, str] = {}
    digest = hashlib.sha256()
    num_bytes = 0
    with path.open("rb", buffering=2**20) as file:
        reader = TarReader(path, file)
        for member, raw in reader.members():
            digest.update(raw)
            num_bytes += len(raw)
            extension = _allowed_extension(path, member)
            if extension in IMAGE_EXTENSIONS:
                if is_foreign:
                    _require_image(path, member)
                images.append(_sample(member, number, name_of(member.name)))
                progress.advance(1, len(raw))
            elif extension == "cls":
                classes[sample_key(member.name)] = member.data.decode("utf-8", "replace").strip()
        rest = reader.rest()
    digest.update(rest)
    facts = ShardFacts(
        name=path.name, num_samples=len(images), shard_bytes=num_bytes + len(rest), sha256=digest.hexdigest()
    )
    return facts, [_with_class(path, image, classes) for image in images]


def _allowed_extension(path: Path, member: Member) -> str:
    extension = member.name.rpartition("/")[2].partition(".")[2].lower()
    if extension not in IMAGE_EXTENSIONS and extension not in LABEL_EXTENSIONS:
        raise ManifestError(
            f"{path}: found member {member.name!r} at byte {member.offset}; expected only "
            f"{', '.join(sorted(IMAGE_EXTENSIONS | LABEL_EXTENSIONS))}: take it out"
        )
    return extension


def _plain_name(member: str) -> str:
    return member.removeprefix("./")


def _require_image(path: Path, member: Member) -> None:
    try:
        read_image_header(member.data)
    except ValueError as error:
        raise ManifestError(f"{path}: {member.name} at byte {member.offset} is no intact image: {error}") from error


def _sample(member: Member, shard: int, name: str) -> Sample:
    return Sample(
        key=sample_key(member.name),
        source_name=name,
        class_name=name.rpartition("/")[0].rpartition("/")[2],
        shard=shard,
        offset=member.offset,
        size_bytes=len(member.data),
        sha256=hashlib.sha256(member.data).digest(),
    )


def _with_class(path: Path, sample: Sample, classes: dict[str, str]) -> Sample:
    if sample.class_name:
        return sample
    if sample.key not in classes:
        raise ManifestError(f"{path}: sample {sample.key} has neither a class folder nor a .cls member; expected one")
    return replace(sample, class_name=classes[sample.key])


def _refuse(folder: Path, problems: Sequence[str]) -> None:
    if problems:
        raise ManifestError(
            f"{folder}: {'; '.join(problems)}. Nothing was published: make the shards of this cell again"
        )


def _differences(record: WriterRecord, contents: _Contents) -> Iterator[str]:
    """Yield what the shards do not have in common with the writer's record."""
    expected_by_name = {shard.name: shard for shard in record.shards}
    found_by_name = {shard.name: shard for shard in contents.shards}
    for name in sorted(expected_by_name.keys() | found_by_name.keys()):
        expected, found = expected_by_name.get(name), found_by_name.get(name)
        if expected is None:
            yield f"found {name}; expected no such shard"
        elif found is None:
            yield f"{name} is missing; expected {expected.shard_bytes} bytes"
        elif found != expected:
            yield f"found {_described_shard(found)}; expected {_described_shard(expected)}"
    yield from _count_differences(record, contents)


def _count_differences(record: WriterRecord, contents: _Contents) -> Iterator[str]:
    if len(contents.samples) != record.source.num_taken:
        yield f"found {len(contents.samples)} samples; expected the source's {record.source.num_taken}"
    if keys_sha256(contents.keys) != record.order.sha256:
        yield f"found keys in an order that hashes to {keys_sha256(contents.keys)}; expected {record.order.sha256}"
    payloads = hashlib.sha256(b"".join(sample.sha256 for sample in contents.samples)).hexdigest()
    if payloads != record.payloads_sha256:
        yield f"found images that hash to {payloads}; expected {record.payloads_sha256} as they were written"


def _doubled(contents: _Contents) -> Iterator[str]:
    for key, count in Counter(contents.keys).items():
        if count > 1:
            yield f"key {key} stands {count} times; expected once"


def _described_shard(shard: ShardFacts) -> str:
    return f"{shard.name} with {shard.num_samples} samples, {shard.shard_bytes} bytes, sha256 {shard.sha256}"


def _table(samples: Sequence[Sample], class_map: ClassMap) -> pa.Table:
    columns = {name: [getattr(sample, name) for sample in samples] for name in SAMPLES_SCHEMA.names if name != "label"}
    columns["label"] = [class_map.labels[sample.class_name] for sample in samples]
    return pa.table(columns, schema=SAMPLES_SCHEMA)
