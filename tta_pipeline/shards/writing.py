"""From the listing of a cell to its folder of shards, whole or not at all."""

import hashlib
import json
import os
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from tta_pipeline.benchmarks.spec import ShardLimits
from tta_pipeline.errors import ManifestError, ShardError, SourceError
from tta_pipeline.files import published_folder
from tta_pipeline.partitions import Cell
from tta_pipeline.progress import Progress
from tta_pipeline.shards.hashed_file import HashedFile
from tta_pipeline.shards.images import read_image_header
from tta_pipeline.shards.manifest import (
    WRITER_FILE,
    ShardFacts,
    SourceFacts,
    StoredOrder,
    WriterRecord,
    keys_sha256,
    read_record,
)
from tta_pipeline.shards.naming import member_name, sample_key
from tta_pipeline.shards.tar import archive_end, member_header, padding
from tta_pipeline.sources.class_map import ClassMap
from tta_pipeline.sources.listing import Listing, SourceImage

WRITER_VERSION = "1"
_BUFFER_BYTES = 2**20


def write_shards(
    listing: Listing,
    target: Path,
    *,
    benchmark: str,
    source_kind: str,
    generated: bool,
    class_map: ClassMap,
    limits: ShardLimits,
    progress: Progress,
) -> tuple[WriterRecord, bool]:
    """Write the shards of *listing* into *target*; return the writer's record and whether anything was written.

    Nothing is written when the shards there were made from the same listing with the same settings.

    Raises:
        ClassMapError: a class folder is not in the class map.
        SourceError: an image is damaged, or two would have one key.
        ShardError: the shards cannot be written, for want of space or permission.
    """
    class_map.require({image.class_name for image in listing.images}, where=listing.root)
    fingerprint = _fingerprint(benchmark, listing, class_map, limits)
    existing = finished(target)
    if existing is not None and existing.fingerprint == fingerprint:
        progress.advance(existing.num_samples, existing.payload_bytes)
        return existing, False
    members = _members(_ordered(listing.images, limits))
    started = time.perf_counter()
    try:
        with published_folder(target) as folder:
            bounds = shard_bounds([member.image.size_bytes for member in members], limits)
            written = [
                _write_shard(folder / _shard_name(listing.cell, number), members[start:end], progress)
                for number, (start, end) in enumerate(pairwise(bounds))
            ]
            record = WriterRecord(
                benchmark=benchmark,
                corruption=listing.cell.corruption,
                severity=listing.cell.severity,
                source=_source_facts(listing, source_kind, generated=generated),
                class_map_sha256=class_map.sha256,
                order=StoredOrder(
                    name=limits.order, seed=limits.seed, sha256=keys_sha256([member.key for member in members])
                ),
                shards=tuple(facts for facts, _ in written),
                num_samples=len(members),
                payload_bytes=sum(member.image.size_bytes for member in members),
                payloads_sha256=hashlib.sha256(b"".join(digests for _, digests in written)).hexdigest(),
                fingerprint=fingerprint,
                wall_s=time.perf_counter() - started,
            )
            (folder / WRITER_FILE).write_text(json.dumps(record.model_dump(mode="json"), indent=1))
    except OSError as error:
        raise _unwritable(target, listing, error) from error
    return record, True


def finished(folder: Path) -> WriterRecord | None:
    """Return the writer's record of a complete shard set in *folder*, or None if there is no such set."""
    try:
        record = read_record(folder / WRITER_FILE, WriterRecord)
    except ManifestError:
        return None
    paths = {folder / shard.name: shard.shard_bytes for shard in record.shards}
    return record if all(path.is_file() and path.stat().st_size == size for path, size in paths.items()) else None


def shard_bounds(sizes: Sequence[int], limits: ShardLimits) -> list[int]:
    """Return the positions at which samples of *sizes* bytes are cut into shards, from 0 to their number.

    Exactly the number of shards asked for, or as few as the limit allows; their sample counts differ by one at most.
    """
    num_samples = len(sizes)
    if limits.num_shards:
        return _equal_bounds(num_samples, min(limits.num_shards, num_samples))
    if limits.samples_per_shard:
        return _equal_bounds(num_samples, -(-num_samples // limits.samples_per_shard))
    member_bytes = [len(member_header("", 0)) + size + len(padding(size)) for size in sizes]
    num_shards = max(1, sum(member_bytes) // (limits.max_shard_bytes or 1))
    while num_shards < num_samples:
        bounds = _equal_bounds(num_samples, num_shards)
        if all(
            _archive_bytes(member_bytes[start:end]) <= (limits.max_shard_bytes or 0) for start, end in pairwise(bounds)
        ):
            return bounds
        num_shards += 1
    return _equal_bounds(num_samples, num_samples)


def _equal_bounds(num_samples: int, num_shards: int) -> list[int]:
    return [num_samples * number // num_shards for number in range(num_shards + 1)]


def _archive_bytes(member_bytes: Sequence[int]) -> int:
    return sum(member_bytes) + len(archive_end(sum(member_bytes)))


def _ordered(images: Sequence[SourceImage], limits: ShardLimits) -> list[SourceImage]:
    """Order images by a keyed hash of their names: a permutation that no library version and no other image changes."""
    key = limits.seed.to_bytes(8, "big", signed=True)

    def rank(image: SourceImage) -> bytes:
        return hashlib.blake2b(image.name.encode("utf-8", "surrogateescape"), digest_size=16, key=key).digest()

    return sorted(images, key=rank)


class _Member(NamedTuple):
    """An image under the name it has in a shard."""

    image: SourceImage
    name: str
    key: str


def _members(images: Sequence[SourceImage]) -> list[_Member]:
    """Name *images* for webdataset, each by a key of its own."""
    names = [member_name(image.class_name, image.file_name) for image in images]
    members = [_Member(image, name, sample_key(name)) for image, name in zip(images, names, strict=True)]
    if len({member.key for member in members}) != len(members):
        raise _same_key(members)
    return members


def _same_key(members: Sequence[_Member]) -> SourceError:
    by_key: dict[str, _Member] = {}
    pairs = ((by_key.setdefault(member.key, member), member) for member in members)
    one, other = next((one.image, other.image) for one, other in pairs if one is not other)
    return SourceError(
        f"{other.path} ({other.name}) and {one.path} ({one.name}) have one name but for their extension, and "
        "webdataset would read them as one sample; expected one file for each name in a class: rename or remove one"
    )


def _write_shard(path: Path, members: Sequence[_Member], progress: Progress) -> tuple[ShardFacts, bytes]:
    """Write one shard; return its facts and the sha256 of each image as it was read, one after the other."""
    buffer, digests, num_told = bytearray(), [], 0
    with HashedFile(path) as file:
        for image, name, _ in members:
            data = _checked(image)
            digests.append(hashlib.sha256(data).digest())
            buffer += member_header(name, len(data)) + data + padding(len(data))
            if len(buffer) >= _BUFFER_BYTES:
                file.write(buffer)
                progress.advance(len(digests) - num_told, len(buffer))
                buffer, num_told = bytearray(), len(digests)
        file.write(buffer + archive_end(file.num_bytes + len(buffer)))
    progress.advance(len(digests) - num_told, len(buffer))
    facts = ShardFacts(
        name=path.name, num_samples=len(members), shard_bytes=file.num_bytes, sha256=file.digest.hexdigest()
    )
    return facts, b"".join(digests)


def _checked(image: SourceImage) -> bytes:
    data = image.read()
    try:
        read_image_header(data)
    except ValueError as error:
        raise SourceError(
            f"{image.path} is no intact image: found {error}. Nothing was published: replace or remove the file"
        ) from error
    return data


def _shard_name(cell: Cell, number: int) -> str:
    # The cell is part of the name because webdataset's shard cache knows files by their last part alone.
    return f"{cell.corruption}-{cell.severity}-{number:05d}.tar"


def _source_facts(listing: Listing, kind: str, *, generated: bool) -> SourceFacts:
    return SourceFacts(
        kind=kind,
        generated=generated,
        version=listing.version,
        num_images=len(listing.images),
        num_hidden=listing.num_hidden,
        num_strays=len(listing.strays),
    )


def _fingerprint(benchmark: str, listing: Listing, class_map: ClassMap, limits: ShardLimits) -> str:
    decisive = [WRITER_VERSION, benchmark, listing.version, class_map.sha256, limits.model_dump(mode="json")]
    return hashlib.sha256(json.dumps(decisive, sort_keys=True).encode()).hexdigest()


def _unwritable(target: Path, listing: Listing, error: OSError) -> ShardError:
    payload_bytes = sum(image.size_bytes for image in listing.images)
    stat = os.statvfs(target.parent if target.parent.exists() else "/")
    return ShardError(
        f"{target} cannot be written ({error}); about {payload_bytes / 2**20:,.1f} MiB are needed and "
        f"{stat.f_bavail * stat.f_frsize / 2**20:,.1f} MiB are free there. Nothing was published"
    )
