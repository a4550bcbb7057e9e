"""Writing the shards of a cell from its listing; their folder appears whole or not at all."""

import hashlib
import json
import os
import re
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from operator import itemgetter
from pathlib import Path

import numpy as np
from pydantic import JsonValue

from tta_pipeline.benchmarks.shard_settings import ShardSettings
from tta_pipeline.data.images.listing import ListedImage, Listing, read_ahead
from tta_pipeline.data.labels.class_map import ClassMap
from tta_pipeline.domain.cells import Cell
from tta_pipeline.domain.locations import CLASS_MAP_FILE
from tta_pipeline.domain.ordering import Indices, by_class, dirichlet, domain_seed, permuted
from tta_pipeline.errors import ImagesError, ManifestError, ShardError
from tta_pipeline.results.shard_set_rows import MEASUREMENTS_FILE
from tta_pipeline.shards.benchmark_expectation import delta_of, encoding_of
from tta_pipeline.shards.checksums import CHECKSUMS_FILE
from tta_pipeline.shards.encoding import encoder, stored_extension
from tta_pipeline.shards.expected_shard_set import ExpectedShardSet
from tta_pipeline.shards.manifest import MANIFEST_FILE, WRITER_FILE, read_record
from tta_pipeline.shards.member_names import make_member_name, sample_key
from tta_pipeline.shards.sample_index import keys_sha256
from tta_pipeline.shards.set_facts import ShardFacts, SkippedImage, SourceFacts, StoredOrder, WriterRecord
from tta_pipeline.shards.shard_set import SAMPLES_FILE, VERIFIED_FILE, find_damage
from tta_pipeline.shards.shard_writing import PlannedMember, PlannedShard, WrittenShard, sample_bytes, write_shard
from tta_pipeline.shards.tar import archive_end
from tta_pipeline.util.files import advice, published_folder
from tta_pipeline.util.garbage_collection import gc_paused
from tta_pipeline.util.processes import Workers
from tta_pipeline.util.progress import Progress
from tta_pipeline.util.short_lists import abbreviate_list

WRITER_VERSION = "3"
_OWN_FILES = frozenset(
    {
        MANIFEST_FILE, SAMPLES_FILE, CHECKSUMS_FILE, WRITER_FILE, VERIFIED_FILE, MEASUREMENTS_FILE, CLASS_MAP_FILE
    }
)  # fmt: skip
_OWN_SHARD = re.compile(r".+-\d+-\d{5}\.tar")
_OF_FILE_SYSTEMS = re.compile(r"\.unpublished-.*|\._.*|\.DS_Store|\.nfs.*")


@dataclass(frozen=True, kw_only=True)
class Target:
    """Folder of a cell's shards, and facts for their record."""

    folder: Path
    benchmark_name: str
    source_kind: str
    generated: bool = False
    recipe: dict[str, JsonValue] | None = None
    """See `SourceFacts.recipe`."""


def fingerprint(target: Target, source_version: str, class_map: ClassMap, settings: ShardSettings) -> str:
    """Return the hash of everything that determines the shards."""
    chosen = settings.model_dump(mode="json")
    if settings.interpolation == "bilinear":
        del chosen["interpolation"]  # so that sets made by earlier versions, which had no choice, are kept
    decisive = [
        WRITER_VERSION,
        target.benchmark_name,
        source_version,
        class_map.sha256,
        chosen,
        encoding_of(settings).function_sha256,
    ]
    return hashlib.sha256(json.dumps(decisive, sort_keys=True).encode()).hexdigest()


def write_shards(
    listing: Listing,
    target: Target,
    *,
    version: str,
    class_map: ClassMap,
    settings: ShardSettings,
    progress: Progress,
    workers: Workers | None = None,
) -> WriterRecord:
    """Write the shards of *listing* into the target's folder, which appears whole or not at all.

    Args:
        listing: The images.
        target: Folder and names of the shards.
        version: The source's version of the cell, part of the fingerprint.
        class_map: Labels; the class of every image must be in it.
        settings: Limits, order and processing of the images.
        progress: Counts images and bytes done.
        workers: Processes that each write one shard at a time, if that is faster; None: this process writes.

    Raises:
        ClassMapError: a class folder is not in the class map, and the settings do not allow skipping it.
        ImagesError: an image is damaged, and the settings do not allow skipping it; or two images have the same key.
        ShardError: the shards cannot be written for lack of space or permission, or because the folder contains
            foreign files; or one image alone exceeds the size limit of a shard.
    """
    _require_replaceable(target.folder, _read_shard_names(target.folder))
    listing = listing.in_memory()
    if workers:
        workers.expect(sum(image.size_bytes for image in listing.images))
    if workers and workers.are_worth_starting():
        workers.start(write_shard)  # the processes import what they need while the images are put in order
    else:
        workers = None
    images, source = _select_images(listing, target, version, class_map, settings)
    members = _plan_members(images, settings, listing.cell)
    started = time.perf_counter()
    read_ahead(images)
    try:
        with published_folder(target.folder) as folder:
            written = _write_all(
                folder,
                listing.cell,
                members,
                class_map=class_map,
                settings=settings,
                progress=progress,
                workers=workers,
            )
            record = WriterRecord(
                benchmark=target.benchmark_name,
                corruption=listing.cell.corruption,
                severity=listing.cell.severity,
                source=source,
                class_map_sha256=class_map.sha256,
                order=StoredOrder(
                    name=settings.order,
                    seed=settings.seed,
                    delta=delta_of(settings),
                    sha256=keys_sha256([member.key for member in members]),
                ),
                encoding=encoding_of(settings),
                shards=tuple(
                    ShardFacts(
                        name=shard.name,
                        num_samples=shard.num_samples,
                        shard_bytes=shard.shard_bytes,
                        sha256=shard.sha256,
                    )
                    for shard in written
                ),
                num_samples=len(members),
                payload_bytes=sum(shard.payload_bytes for shard in written),
                payloads_sha256=hashlib.sha256(b"".join(shard.digests for shard in written)).hexdigest(),
                fingerprint=fingerprint(target, version, class_map, settings),
                wall_s=time.perf_counter() - started,
            )
            (folder / WRITER_FILE).write_text(json.dumps(record.model_dump(mode="json"), indent=1))
    except OSError as error:
        raise _unwritable(target.folder, listing, error) from error
    return record


def find_unchanged(
    target: Target, cell: Cell, version: str, class_map: ClassMap, settings: ShardSettings
) -> WriterRecord | None:
    """Return the record of the existing shards of *cell* if `write_shards` would write the same, or None."""
    record = read_finished_record(target.folder)
    if record is None or record.fingerprint != fingerprint(target, version, class_map, settings):
        return None
    # The record repeats each fact of the fingerprint, and the manifest copies them: an edited record is written again.
    expected = ExpectedShardSet(
        cell=cell,
        benchmark=target.benchmark_name,
        class_map_sha256=class_map.sha256,
        encoding=encoding_of(settings).model_dump(mode="json", exclude_none=True),
        order=(settings.order, settings.seed, delta_of(settings)),
        recipe=target.recipe,
        source_version=version,
    )
    return None if expected.problems(record) else record


def read_finished_record(folder: Path) -> WriterRecord | None:
    """Return the writer's record of a complete shard set in *folder*, or None if there is no such set."""
    try:
        record = read_record(folder / WRITER_FILE, WriterRecord)
    except ManifestError:
        return None
    return None if any(find_damage(folder, record.shards)) else record


def shard_bounds(sizes: Sequence[int], settings: ShardSettings) -> list[int]:
    """Return the bounds of the shards: positions among the samples, from 0 to the number of samples.

    *sizes* are the bytes of each sample with all its headers, see `sample_bytes`. There are exactly as many shards as
    requested, or as few as the limit allows. Their sample counts differ by at most one.
    """
    num_samples = len(sizes)
    if settings.num_shards:
        return equal_bounds(num_samples, min(settings.num_shards, num_samples))
    by_count = -(-num_samples // settings.samples_per_shard) if settings.samples_per_shard else 1
    if not settings.max_shard_bytes:
        return equal_bounds(num_samples, by_count)
    num_shards = max(1, by_count, sum(sizes) // settings.max_shard_bytes)
    while num_shards < num_samples:
        bounds = equal_bounds(num_samples, num_shards)
        if all(_archive_bytes(sizes[start:end]) <= settings.max_shard_bytes for start, end in pairwise(bounds)):
            return bounds
        num_shards += 1
    return equal_bounds(num_samples, num_samples)


def equal_bounds(num_samples: int, num_shards: int) -> list[int]:
    """Return the bounds that cut samples into *num_shards* parts whose sizes differ by at most one."""
    return [num_samples * number // num_shards for number in range(num_shards + 1)]


def _archive_bytes(sizes: Sequence[int]) -> int:
    return sum(sizes) + len(archive_end(sum(sizes)))


def _sizes(members: Sequence[PlannedMember], settings: ShardSettings, labels: Mapping[str, int]) -> list[int]:
    """Return the bytes of each sample if shards have a limit in bytes; otherwise a list of zeros."""
    if not settings.max_shard_bytes:
        return [0] * len(members)
    sizes = [sample_bytes(member, settings, labels) for member in members]
    member, size = max(zip(members, sizes, strict=True), key=itemgetter(1))
    if _archive_bytes([size]) > settings.max_shard_bytes:
        raise ShardError(
            f"{member.image.path}: {member.image.name} has {member.image.size_bytes:,} bytes, so a shard with only "
            f"this image has {_archive_bytes([size]):,}; expected at most {settings.max_shard_bytes:,}: raise "
            "max_shard_bytes, or remove this image"
        )
    return sizes


def _select_images(
    listing: Listing, target: Target, version: str, class_map: ClassMap, settings: ShardSettings
) -> tuple[list[ListedImage], SourceFacts]:
    """Return the images for the shards, and the facts about all images of the source."""
    known = [image for image in listing.images if image.class_name in class_map.labels]
    foreign = {image.class_name for image in listing.images} - class_map.labels.keys()
    if settings.extra_classes == "error":
        class_map.require_known(foreign, where=listing.root)
    skipped = _find_damaged(known, settings) if settings.on_corrupt_image == "skip" else {}
    facts = SourceFacts(
        kind=target.source_kind,
        generated=target.generated,
        recipe=target.recipe,
        version=version,
        num_images=len(listing.images),
        num_hidden=listing.num_hidden,
        num_strays=len(listing.strays),
        skipped=tuple(SkippedImage(name=image.name, reason=reason) for image, reason in skipped.items()),
        num_foreign=len(listing.images) - len(known),
        extra_classes=tuple(sorted(foreign)),
    )
    chosen = [image for image in known if image not in skipped] if skipped else known
    if not chosen:
        raise ImagesError(
            f"0 of {len(listing.images)} images under {listing.root} are usable; expected at least one intact image "
            "of a class in the class map: replace the damaged files, or change the class map"
        )
    return chosen, facts


def _find_damaged(images: Sequence[ListedImage], settings: ShardSettings) -> dict[ListedImage, str]:
    """Return the damaged images with reasons; checked before writing, because the number of samples sets the bounds."""
    encode, reasons = encoder(settings), {}
    for image in images:
        try:
            encode(image.read())
        except ValueError as error:
            reasons[image] = str(error)
    return reasons


@gc_paused()
def _plan_members(images: Sequence[ListedImage], settings: ShardSettings, cell: Cell) -> list[PlannedMember]:
    """Put *images* of *cell* in order and name them for webdataset, each with a unique key."""
    images = order_images(images, settings, cell)
    names = [make_member_name(image.class_name, stored_extension(image.file_name, settings)) for image in images]
    members = [PlannedMember(image, name, sample_key(name)) for image, name in zip(images, names, strict=True)]
    if len({member.key for member in members}) != len(members):
        raise _same_key(members)
    return members


def _same_key(members: Sequence[PlannedMember]) -> ImagesError:
    by_key: dict[str, PlannedMember] = {}
    pairs = ((by_key.setdefault(member.key, member), member) for member in members)
    one, other = next((one.image, other.image) for one, other in pairs if one is not other)
    return ImagesError(
        f"{other.path} ({other.name}) and {one.path} ({one.name}) differ only in their extension, so webdataset would "
        "read them as one sample; expected one file for each name in a class: rename or remove one of them"
    )


def _write_all(
    folder: Path,
    cell: Cell,
    members: Sequence[PlannedMember],
    *,
    class_map: ClassMap,
    settings: ShardSettings,
    progress: Progress,
    workers: Workers | None,
) -> list[WrittenShard]:
    bounds = shard_bounds(_sizes(members, settings, class_map.labels), settings)
    plans = [
        PlannedShard(
            path=folder / name,
            members=members[start:end],
            settings=settings,
            labels=class_map.labels,
        )
        for name, (start, end) in zip(_shard_names(cell, settings, len(bounds) - 1), pairwise(bounds), strict=True)
    ]
    if workers is None:
        return [write_shard(plan, progress.advance) for plan in plans]
    written = []
    with gc_paused():  # the work on images, which may leave garbage, is in the worker processes
        for shard in workers.map(write_shard, plans):
            progress.advance(shard.num_samples, shard.shard_bytes)
            written.append(shard)
    return written


def _shard_names(cell: Cell, settings: ShardSettings, num_shards: int) -> list[str]:
    if settings.shard_name is None:
        # The cell is part of the name because webdataset's shard cache identifies files by their last part only.
        return [f"{cell.corruption}-{cell.severity}-{number:05d}.tar" for number in range(num_shards)]
    names = [settings.shard_name % number for number in range(num_shards)]
    if len(names[-1]) > len(names[0]):
        raise ShardError(
            f"shard_name {settings.shard_name!r} has too few digits for {num_shards} shards; expected shard names "
            "that sort in the order of the shards: use more digits in shard_name"
        )
    return names


def _read_shard_names(folder: Path) -> frozenset[str]:
    """Return the names of our shards in *folder* from the writer's record."""
    try:
        return frozenset(shard.name for shard in read_record(folder / WRITER_FILE, WriterRecord).shards)
    except ManifestError:
        return frozenset()


def _unwritable(target: Path, listing: Listing, error: OSError) -> ShardError:
    payload_bytes = sum(image.size_bytes for image in listing.images)
    stat = os.statvfs(target.parent if target.parent.exists() else "/")
    return ShardError(
        f"{target} cannot be written ({error}); expected a writable folder with about {payload_bytes / 2**20:,.1f} "
        f"MiB of free space ({stat.f_bavail * stat.f_frsize / 2**20:,.1f} MiB are free). Nothing was published: "
        f"{advice(error)}"
    )


def order_images(images: Sequence[ListedImage], settings: ShardSettings, cell: Cell) -> list[ListedImage]:
    """Return *images* of *cell*, given sorted by name, in the order that *settings* define."""
    if settings.order == "source":
        return list(images)
    return [images[position] for position in _positions(images, settings, cell).tolist()]


def _positions(images: Sequence[ListedImage], settings: ShardSettings, cell: Cell) -> Indices:
    names = [image.name for image in images]
    if settings.order == "permuted":
        return permuted(names, seed=settings.seed)
    numbers = {name: number for number, name in enumerate(sorted({image.class_name for image in images}))}
    classes = np.array([numbers[image.class_name] for image in images], np.int64)
    if settings.order == "by_class":
        return by_class(names, classes, seed=settings.seed)
    return dirichlet(names, classes, seed=domain_seed(settings.seed, cell.key), delta=settings.delta)


def _require_replaceable(folder: Path, shard_names: Collection[str]) -> None:
    """Refuse to replace *folder* if it contains anything that is not part of one of our shard sets.

    Args:
        folder: Folder for a shard set.
        shard_names: Names of our shards that do not follow the writer's own pattern.
    """
    if folder.is_dir() and (others := sorted(p.name for p in folder.iterdir() if not _is_ours(p, shard_names))):
        raise ShardError(
            f"{folder} has {abbreviate_list(others)}, which tta_pipeline did not write; expected an empty folder or a "
            "shard set made by tta_pipeline, since the whole folder is replaced: choose another folder, or move these "
            "files away"
        )


def _is_ours(path: Path, shard_names: Collection[str]) -> bool:
    if path.is_symlink():
        return path.suffix in (".tar", ".gz", ".tgz")
    if path.is_dir():
        return False
    name = path.name
    is_named = name in _OWN_FILES or name in shard_names
    return is_named or bool(_OWN_SHARD.fullmatch(name) or _OF_FILE_SYSTEMS.fullmatch(name))
