"""Writing one shard from its planned members; a worker process can run it."""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from tta_pipeline.benchmarks.shard_settings import ShardSettings
from tta_pipeline.data.images.listing import ImageReader, ListedImage
from tta_pipeline.errors import ImagesError, ShardError
from tta_pipeline.shards.encoding import Encode, encoder
from tta_pipeline.shards.hashed_file import HashedFile
from tta_pipeline.shards.tar import archive_end, member_header, padding

_BUFFER_BYTES = 2**20


class PlannedMember(NamedTuple):
    """An image with its name and key in a shard."""

    image: ListedImage
    name: str
    key: str


@dataclass(frozen=True, kw_only=True)
class PlannedShard:
    """A shard to write."""

    path: Path
    members: Sequence[PlannedMember]
    settings: ShardSettings
    labels: Mapping[str, int]
    """The label of each class, for `.cls` and `.json` members if the settings require these."""

    def __reduce__(self) -> tuple[Any, ...]:
        # There may be millions of named tuples; sending them to another process takes ten times as long as columns.
        images, names, keys = zip(*self.members, strict=True)
        return _planned_shard, (self.path, tuple(zip(*images, strict=True)), names, keys, self.settings, self.labels)


def _planned_shard(  # noqa: PLR0917 - what `__reduce__` returns has no names
    path: Path,
    image_columns: Sequence[Sequence[Any]],
    names: Sequence[str],
    keys: Sequence[str],
    settings: ShardSettings,
    labels: Mapping[str, int],
) -> PlannedShard:
    members = tuple(map(PlannedMember, map(ListedImage, *image_columns), names, keys))
    return PlannedShard(path=path, members=members, settings=settings, labels=labels)


class WrittenShard(NamedTuple):
    """One shard on disk."""

    name: str
    num_samples: int
    shard_bytes: int
    sha256: str
    payload_bytes: int
    digests: bytes
    """The sha256 of each stored image, concatenated."""


def write_shard(plan: PlannedShard, advance: Callable[[int, int], None] = lambda *_: None) -> WrittenShard:
    """Write a shard and sync it to disk; call *advance* regularly with the numbers of samples and bytes done.

    Raises:
        ImagesError: an image is damaged or gone.
        OSError: the file cannot be written.
    """
    encode = encoder(plan.settings)
    buffer, digests = bytearray(), []
    payload_bytes = num_told = 0
    with HashedFile(plan.path) as file, ImageReader() as reader:
        for member in plan.members:
            data = _encode_or_refuse(member.image, reader.read(member.image), encode)
            # Hash here, not in the file's thread: two threads that compute many short hashes slow each other down.
            digests.append(hashlib.sha256(data).digest())
            payload_bytes += len(data)
            buffer += member_header(member.name, len(data))
            buffer += data
            buffer += padding(len(data))
            buffer += _label_members(member, plan.settings, plan.labels)
            if len(buffer) >= _BUFFER_BYTES:
                file.write(buffer)
                advance(len(digests) - num_told, len(buffer))
                buffer, num_told = bytearray(), len(digests)
        file.write(buffer + archive_end(file.num_bytes + len(buffer)))
    advance(len(digests) - num_told, len(buffer))
    return WrittenShard(
        name=plan.path.name,
        num_samples=len(digests),
        shard_bytes=file.num_bytes,
        sha256=file.digest.hexdigest(),
        payload_bytes=payload_bytes,
        digests=b"".join(digests),
    )


def sample_bytes(member: PlannedMember, settings: ShardSettings, labels: Mapping[str, int]) -> int:
    """Return the bytes that `write_shard` writes for a sample whose image is stored unchanged."""
    size_bytes = member.image.size_bytes
    with_header = len(member_header(member.name, size_bytes)) + size_bytes + len(padding(size_bytes))
    return with_header + len(_label_members(member, settings, labels))


def _label_members(member: PlannedMember, settings: ShardSettings, labels: Mapping[str, int]) -> bytes:
    """Return the `.cls` and `.json` members of a sample, as webdataset's writer would write them; empty if unwanted."""
    if not settings.labels:
        return b""
    label = labels[member.image.class_name]
    described = {"class": member.image.class_name, "label": label, "source": member.image.name}
    bodies = {".cls": str(label).encode(), ".json": json.dumps(described).encode()}
    return b"".join(
        member_header(member.key + extension, len(body)) + body + padding(len(body))
        for extension, body in bodies.items()
    )


def _encode_or_refuse(image: ListedImage, data: bytes, encode: Encode) -> bytes:
    try:
        return encode(data)
    except ValueError as error:
        raise ImagesError(
            f"{image.path} ({image.name}) is not an intact image: found {error}. Nothing was published: replace or "
            "remove this file, or skip damaged images with `on_corrupt_image: skip` or --skip-corrupt-images"
        ) from error
    except ShardError as error:
        raise ShardError(f"{image.path} ({image.name}): {error}. Nothing was published") from error
