"""Verification of shard sets against their manifests: totals, missing and extra shards, and a hash of every byte."""

import os
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tta_pipeline.data.images.shard_files import list_shard_files
from tta_pipeline.errors import ClassMapError, ManifestError
from tta_pipeline.shards.backfill_checksums import backfill_checksums
from tta_pipeline.shards.checksums import CHECKSUMS_FILE
from tta_pipeline.shards.expected_shard_set import ANYTHING, ExpectedShardSet, expected_at_path
from tta_pipeline.shards.manifest import MANIFEST_FILE, WRITER_FILE
from tta_pipeline.shards.set_facts import ShardFacts
from tta_pipeline.shards.shard_set import SAMPLES_FILE, ShardSet
from tta_pipeline.util.files import hash_file, is_unpublished
from tta_pipeline.util.progress import Progress, Reporter, quiet_reporter
from tta_pipeline.util.short_lists import abbreviate_list

_FILES_OF_A_SET = (MANIFEST_FILE, SAMPLES_FILE, CHECKSUMS_FILE, WRITER_FILE)
"""Files that only shard sets have: each identifies a shard set even if its manifest is gone."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """The result of verifying one shard set."""

    folder: Path
    num_shards: int
    num_samples: int
    shard_bytes: int
    problems: tuple[str, ...]


def find_shard_sets(roots: Iterable[Path]) -> tuple[Path, ...]:
    """Return every folder of a shard set at or under *roots*, even if its manifest is missing."""
    found = []
    for root in roots:
        there = (path for name in _FILES_OF_A_SET for path in root.rglob(name))
        here = sorted({path.parent for path in there if not any(map(is_unpublished, path.parts))})
        if not here:
            raise ManifestError(
                f"There is no {MANIFEST_FILE} in {root} or its subfolders; expected shard sets: run `tta-pipeline "
                "shards make` on images, or `tta-pipeline shards index` on third-party shards"
            )
        found += here
    return tuple(dict.fromkeys(found))


def verify_shard_sets(folders: Sequence[Path], progress: Reporter) -> Iterator[Verdict]:
    """Yield the verdict on each shard set. Shards are hashed on all cores: hashlib releases Python's global lock.

    Missing checksums of an intact set are written again.
    """
    with ThreadPoolExecutor(len(os.sched_getaffinity(0)), thread_name_prefix="tta-verify") as pool:
        yield from (_verify_one(folder, pool, progress) for folder in folders)


def find_shard_problems(shard_set: ShardSet, belonging: ExpectedShardSet = ANYTHING) -> tuple[str, ...]:
    """Return every difference between the shards on disk, the manifest and *belonging*."""
    with ThreadPoolExecutor(len(os.sched_getaffinity(0)), thread_name_prefix="tta-verify") as pool:
        return (*belonging.problems(shard_set.manifest), *_find_problems(shard_set, pool, quiet_reporter("", 0)))


def find_missing_classes(shard_set: ShardSet) -> tuple[str, ...]:
    """Return the classes of the class map that no sample has."""
    counts = np.bincount(shard_set.index.labels, minlength=len(shard_set.manifest.classes))
    return tuple(name for name, count in zip(shard_set.manifest.classes, counts, strict=True) if not count)


def describe_missing_classes(missing: Sequence[str]) -> str:
    """Return the text, in parentheses, for the classes *missing*; empty if there are none."""
    return f" (no sample of {len(missing):,} of them: {abbreviate_list(missing)})" if missing else ""


def _verify_one(folder: Path, pool: ThreadPoolExecutor, progress: Reporter) -> Verdict:
    try:
        shard_set = ShardSet.open(folder)
        belonging = expected_at_path(folder, shard_set.manifest.cell)
        problems = [f"{folder}: {problem}" for problem in belonging.problems(shard_set.manifest)]
    except (ClassMapError, ManifestError) as error:
        return Verdict(folder=folder, num_shards=0, num_samples=0, shard_bytes=0, problems=(str(error),))
    manifest = shard_set.manifest
    problems += _find_problems(shard_set, pool, progress(str(folder), manifest.num_samples))
    if not problems:
        problems += _backfill_checksums(shard_set)
    return Verdict(
        folder=folder,
        num_shards=len(manifest.shards),
        num_samples=manifest.num_samples,
        shard_bytes=manifest.shard_bytes,
        problems=tuple(problems),
    )


def _backfill_checksums(shard_set: ShardSet) -> Iterator[str]:
    """Add checksums to the intact *shard_set* if they are missing and its folder is writable; yield any problem."""
    if shard_set.checksums is None and os.access(shard_set.folder, os.W_OK):
        try:
            backfill_checksums(shard_set)
        except ManifestError as error:
            yield str(error)


def _find_problems(shard_set: ShardSet, pool: ThreadPoolExecutor, progress: Progress) -> Iterator[str]:
    yield from _check_index(shard_set)
    if shard_set.remote is not None:
        yield from shard_set.remote.find_changes()
        return
    expected = {shard.name: shard for shard in shard_set.manifest.shards}
    present = {path.name: path for path in list_shard_files(shard_set.folder, shard_set.manifest.files)}
    yield from (f"{present[name]} is not in the manifest" for name in sorted(present.keys() - expected.keys()))
    yield from (f"{shard_set.folder / name} is missing" for name in expected.keys() - present.keys())
    here = [(present[name], shard) for name, shard in expected.items() if name in present]
    for (_, shard), problem in zip(here, pool.map(_check_bytes, here), strict=True):
        progress.advance(shard.num_samples, shard.shard_bytes)
        if problem:
            yield problem


def _check_index(shard_set: ShardSet) -> Iterator[str]:
    manifest, index = shard_set.manifest, shard_set.index
    counted = np.bincount(index.shards, minlength=len(manifest.shards)).tolist()
    stated = [shard.num_samples for shard in manifest.shards]
    if counted != stated or len(index) != manifest.num_samples or int(index.sizes.sum()) != manifest.payload_bytes:
        yield (
            f"{shard_set.folder}: the sample index has {len(index)} samples of {index.sizes.sum()} bytes in total "
            f"({counted} per shard), but the manifest lists {manifest.num_samples} samples of "
            f"{manifest.payload_bytes} bytes ({stated} per shard)"
        )
    if index.labels_sha256 != manifest.labels_sha256:
        yield (
            f"{shard_set.folder}: the keys and labels of the sample index hash to {index.labels_sha256}, but the "
            f"manifest lists {manifest.labels_sha256}"
        )


def _check_bytes(item: tuple[Path, ShardFacts]) -> str | None:
    path, shard = item
    size_bytes = path.stat().st_size
    if size_bytes != shard.shard_bytes:
        return f"{path} has {size_bytes} bytes; expected {shard.shard_bytes}"
    found = hash_file(path)
    return None if found == shard.sha256 else f"{path} hashes to {found}; expected {shard.sha256}"
