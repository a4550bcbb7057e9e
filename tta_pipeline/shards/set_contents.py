"""The content of a folder of shards, read back, and the manifest published from it."""

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np
import pyarrow as pa

from tta_pipeline.data.images.shard_files import list_shard_files
from tta_pipeline.data.labels.class_map import ClassMap
from tta_pipeline.errors import ManifestError
from tta_pipeline.shards.checksums import as_digests
from tta_pipeline.shards.manifest import MANIFEST_FILE
from tta_pipeline.shards.sample_index import SAMPLES_SCHEMA, SampleIndex
from tta_pipeline.shards.set_facts import (
    Manifest,
    ShardFacts,
)
from tta_pipeline.shards.shard_reading import Sample, ShardContents, ShardToRead, read_shard
from tta_pipeline.shards.shard_set import ShardSet, publish_manifest
from tta_pipeline.util.processes import Workers
from tta_pipeline.util.progress import Progress
from tta_pipeline.util.short_lists import abbreviate_list, describe_extensions


@dataclass(frozen=True, kw_only=True)
class PublishedShardSet:
    """A shard set with its manifest, and how the manifest was made."""

    shard_set: ShardSet
    was_built: bool
    wall_s: float
    """Seconds for reading back, comparing and publishing; for comparing alone if the manifest existed."""
    left_out: Mapping[str, int] = field(default_factory=dict)
    """Number of ignored members of adopted shards by extension: neither images nor classes."""

    def describe_left_out(self) -> str:
        """Return what the source contains and the shards do not, with numbers; empty if nothing."""
        source = self.shard_set.manifest.source
        if not self.left_out:
            return source.left_out
        hidden = source.model_copy(update={"num_strays": 0}).left_out
        return describe_extensions(self.left_out) + (f", {hidden}" if hidden else "")


@dataclass(frozen=True, kw_only=True)
class SetContents:
    """The content of all shards of a folder."""

    shards: tuple[ShardContents, ...]

    @property
    def facts(self) -> tuple[ShardFacts, ...]:
        """The facts of each shard."""
        return tuple(
            ShardFacts(
                name=shard.name,
                num_samples=len(shard.samples),
                shard_bytes=shard.shard_bytes,
                sha256=shard.sha256,
            )
            for shard in self.shards
        )

    @cached_property
    def samples(self) -> list[Sample]:
        """All samples, in stored order."""
        return [sample for shard in self.shards for sample in shard.samples]

    @property
    def keys(self) -> list[str]:
        """The key of each sample."""
        return [sample.key for sample in self.samples]

    @property
    def payload_bytes(self) -> int:
        """Sum of the sizes of the image files."""
        return sum(sample.size_bytes for sample in self.samples)

    @cached_property
    def left_out(self) -> Counter[str]:
        """Number of ignored members by extension."""
        counts = Counter[str]()
        for shard in self.shards:
            counts.update(shard.left_out)
        return counts


def find_described_set(folder: Path, class_map: ClassMap | None) -> ShardSet | None:
    """Return the shard set in *folder* if its manifest describes the current shards, or None."""
    if not (folder / MANIFEST_FILE).exists():
        return None
    try:
        shard_set = ShardSet.open(folder)
        shard_set.require_intact()
    except ManifestError:
        return None
    names = {path.name for path in list_shard_files(folder, shard_set.manifest.files)}
    same_map = class_map is None or shard_set.manifest.class_map_sha256 == class_map.sha256
    return shard_set if same_map and names == {shard.name for shard in shard_set.manifest.shards} else None


def publish_contents(folder: Path, contents: SetContents, class_map: ClassMap, facts: dict[str, object]) -> ShardSet:
    """Publish in *folder* the manifest of *contents* with *facts*, which are the other fields of the manifest."""
    class_map.require_known({sample.class_name for sample in contents.samples}, where=folder)
    index = SampleIndex(table=_table(contents, class_map))
    manifest = Manifest.model_validate(
        {
            **facts,
            "payload_bytes": contents.payload_bytes,
            "classes": class_map.classes,
            "labels_sha256": index.labels_sha256,
            "samples_sha256": hashlib.sha256(index.serialise()).hexdigest(),
        }
    )
    is_checked = all(sample.checksum for sample in contents.samples)
    checksums = as_digests(sample.checksum for sample in contents.samples) if is_checked else None
    return publish_manifest(folder, manifest, index, checksums)


def read_contents(
    paths: Sequence[Path], progress: Progress, workers: Workers | None, *, is_foreign: bool
) -> SetContents:
    """Read the shards at *paths*, in processes of *workers* if these are worth starting.

    Raises:
        ManifestError: a shard is damaged, or a sample has no image or class.
    """
    shards = [ShardToRead(path, is_foreign) for path in paths]
    if workers:
        workers.expect(sum(shard.path.stat().st_size for shard in shards))
    if workers is None or not workers.are_worth_starting():
        return SetContents(shards=tuple(read_shard(shard, progress.advance) for shard in shards))
    contents = []
    for shard in workers.map(read_shard, shards):
        progress.advance(len(shard.samples), shard.shard_bytes)
        contents.append(shard)
    return SetContents(shards=tuple(contents))


def refuse_problems(folder: Path, problems: Sequence[str]) -> None:
    """Refuse the shards in *folder* if they have *problems*.

    Raises:
        ManifestError: there is a problem; the message names the first three.
    """
    if problems:
        raise ManifestError(
            f"{folder}: {abbreviate_list(problems, '; ')}. Nothing was published: rebuild or refetch this cell's shards"
        )


def shard_differences(shards: Sequence[ShardFacts], contents: SetContents) -> Iterator[str]:
    """Yield the differences between the shards that were read and *shards*."""
    expected_by_name = {shard.name: shard for shard in shards}
    found_by_name = {shard.name: shard for shard in contents.facts}
    for name in sorted(expected_by_name.keys() | found_by_name.keys()):
        expected, found = expected_by_name.get(name), found_by_name.get(name)
        if expected is None:
            yield f"found {name}, which is not listed; expected no such shard"
        elif found is None:
            yield f"{name} is missing; expected a shard of {expected.shard_bytes} bytes"
        elif found != expected:
            yield f"found {_describe_shard(found)}; expected {_describe_shard(expected)}"


def find_duplicate_keys(contents: SetContents) -> Iterator[str]:
    """Yield a sentence for each key that several samples have."""
    for key, count in Counter(contents.keys).items():
        if count > 1:
            yield f"key {key} appears {count} times; expected each key once"


def _describe_shard(shard: ShardFacts) -> str:
    return f"{shard.name} with {shard.num_samples} samples, {shard.shard_bytes} bytes, sha256 {shard.sha256}"


def _table(contents: SetContents, class_map: ClassMap) -> pa.Table:
    keys, source_names, class_names, offsets, sizes, digests, *_ = zip(*contents.samples, strict=True)
    counts = [len(shard.samples) for shard in contents.shards]
    columns = {
        "key": keys,
        "source_name": source_names,
        "label": [class_map.labels[name] for name in class_names],
        "shard": np.repeat(np.arange(len(counts)), counts),
        "offset": offsets,
        "size_bytes": sizes,
        "sha256": digests,
    }
    return pa.table(columns, schema=SAMPLES_SCHEMA)
