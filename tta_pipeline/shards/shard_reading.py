"""Reading one shard with code that is independent of the writer's; a worker process can run it."""

import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from tta_pipeline.data.formats.tar_format import read_compression
from tta_pipeline.data.image_bytes import read_image_header
from tta_pipeline.data.images.existing_shards import StatedClass, stated_class
from tta_pipeline.data.images.shard_layouts import IMAGE_TYPES, LABEL_TYPES, REFUSED_TYPES
from tta_pipeline.data.images.shard_members import GatheredMembers, LabelContent, MemberName, parse_member_name
from tta_pipeline.errors import ManifestError
from tta_pipeline.shards.checksums import checksum
from tta_pipeline.shards.member_names import sample_key, source_name, unescape
from tta_pipeline.shards.tar import Member, TarReader
from tta_pipeline.util.identifiers import require_unicode

_UNPACKERS = {
    "gzip": (".gz", "gunzip"),
    "xz": (".xz", "unxz"),
    "bzip2": (".bz2", "bunzip2"),
    "zstd": (".zst", "unzstd"),
}
"""Suffix and program by which a file of each compression is unpacked."""


class Sample(NamedTuple):
    """One sample as found in a shard. A plain tuple, because there are millions."""

    key: str
    source_name: str
    class_name: str
    offset: int
    size_bytes: int
    sha256: bytes
    checksum: bytes
    """Fast checksum of the bytes; empty if they were not read."""
    label: int | None = None
    """Label from a `.cls` or `.json` member of a third-party shard, if the member contains a whole number."""
    text: str = ""
    """Text in such a member, if it is not a number."""

    @property
    def stated(self) -> StatedClass:
        """The class in a third-party shard."""
        around = self.source_name.rpartition("/")[0].rpartition("/")[0]
        return StatedClass(self.class_name, self.label, self.text, around)


class ShardContents(NamedTuple):
    """The content of one shard."""

    name: str
    shard_bytes: int
    sha256: str
    samples: list[Sample]
    left_out: Mapping[str, int] = {}
    """Number of ignored members of a third-party shard by extension: neither images nor classes."""
    num_hidden: int = 0
    """Number of members of a third-party shard without an extension or with a leading dot in the name."""

    def __reduce__(self) -> tuple[Any, ...]:
        # Sending named tuples from another process takes five times as long as tuples.
        samples = [tuple(sample) for sample in self.samples]
        return _contents, (self.name, self.shard_bytes, self.sha256, samples, dict(self.left_out), self.num_hidden)


class ShardToRead(NamedTuple):
    """A shard to read, and whether this project wrote it."""

    path: Path
    is_foreign: bool
    """Whether the shard is third-party. If so, its images are checked too, as our writer does before it writes."""


def read_shard(shard: ShardToRead, /, advance: Callable[[int, int], None] = lambda *_: None) -> ShardContents:
    """Read every byte of a shard; call *advance* regularly with the numbers of samples and bytes done.

    Raises:
        ManifestError: the shard is not an intact archive of images and labels.
    """
    tally = _BatchedProgress(advance)
    if compression := read_compression(shard.path):
        raise _compressed_error(shard.path, compression)
    with shard.path.open("rb") as file:
        reader = TarReader(shard.path, file)
        if shard.is_foreign:
            return _read_foreign_contents(shard.path, reader, tally)
        samples = _read_own_samples(shard.path, reader, tally)
    return ShardContents(shard.path.name, reader.size_bytes, reader.sha256, samples)


def _compressed_error(path: Path, compression: str) -> ManifestError:
    suffix, unpacker = _UNPACKERS.get(compression, ("", ""))
    packed = path.name + suffix
    advice = f"in its folder, type mv {path.name} {packed} && {unpacker} {packed}" if suffix else "pack it again"
    return ManifestError(
        f"{path} is compressed with {compression}; expected a plain tar, since samples are read by offset: {advice}"
    )


def _read_own_samples(path: Path, reader: TarReader, tally: "_BatchedProgress") -> list[Sample]:
    samples: list[Sample] = []
    for member in reader.members():
        if _allowed_extension(path, member) in IMAGE_TYPES:
            require_unicode(member.name, of=path, error=ManifestError)
            samples.append(_sample(member, source_name(member.name), unescape(_folder_of(member.name))))
            tally.add(len(member.data))
    tally.flush()
    return samples


def _read_foreign_contents(path: Path, reader: TarReader, tally: "_BatchedProgress") -> ShardContents:
    members = GatheredMembers[Member, _FoundImage](keep=_inspect_image, read=_get_data)
    for member in reader.members():
        name = parse_member_name(member.name)
        if name.role != "hidden":
            _refuse_executable(path, member, name)
            require_unicode(member.name, of=path, error=ManifestError)
        members.add(name, member)
        if name.role == "image":
            tally.add(len(member.data))
    tally.flush()
    found = members.samples(where=path, error=ManifestError)
    samples = sorted((_foreign_sample(path, *each) for each in found), key=_position)
    return ShardContents(
        path.name, reader.size_bytes, reader.sha256, samples, members.count_left_out(), members.num_hidden
    )


class _BatchedProgress:
    """Counts samples and reports them by the hundred: a report per sample takes longer than reading the sample."""

    def __init__(self, advance: Callable[[int, int], None]) -> None:
        self._advance = advance
        self._num_samples = self._num_bytes = 0

    def add(self, num_bytes: int) -> None:
        self._num_samples += 1
        self._num_bytes += num_bytes
        if self._num_samples == 100:
            self.flush()

    def flush(self) -> None:
        self._advance(self._num_samples, self._num_bytes)
        self._num_samples = self._num_bytes = 0


def _contents(name: str, shard_bytes: int, sha256: str, samples: list[Any], *others: Any) -> ShardContents:
    return ShardContents(name, shard_bytes, sha256, [Sample._make(sample) for sample in samples], *others)


def _allowed_extension(path: Path, member: Member) -> str:
    extension = member.name.rpartition("/")[2].partition(".")[2].lower()
    if extension not in IMAGE_TYPES and extension not in LABEL_TYPES:
        raise ManifestError(
            f"{path} has the member {member.name!r} at byte {member.offset}; expected only members of type "
            f"{', '.join(sorted(IMAGE_TYPES | LABEL_TYPES))}: repack the shard without this member"
        )
    return extension


def _refuse_executable(path: Path, member: Member, name: MemberName) -> None:
    if name.role == "refused":
        raise ManifestError(
            f"{path} has the member {member.name!r} at byte {member.offset}, which some readers would execute; "
            f"expected no members of type {', '.join(sorted(REFUSED_TYPES))}: repack the shard without this member"
        )


def _plain_name(member: str) -> str:
    return member.removeprefix("./")


class _FoundImage(NamedTuple):
    """An image of a third-party shard; it may turn out not to be the sample's image."""

    sample: Sample
    problem: str
    """Damage of the image; empty if it is intact."""


def _inspect_image(member: Member) -> _FoundImage:
    name = _plain_name(member.name)
    sample = _sample(member, name, _folder_of(name))
    try:
        read_image_header(member.data)
    except ValueError as error:
        return _FoundImage(sample, f"{member.name} at byte {member.offset}: {error}")
    return _FoundImage(sample, "")


def _foreign_sample(path: Path, key: str, image: _FoundImage, said: LabelContent) -> Sample:
    if image.problem:
        raise ManifestError(f"{path} has a damaged image: {image.problem}")
    stated = stated_class(image.sample.source_name, said)
    if stated is None:
        raise ManifestError(
            f"{path}: sample {key} has neither a class folder nor a class in a .cls or .json member; expected one of "
            "them: repack the shards with the class of each sample"
        )
    return image.sample._replace(class_name=stated.name, label=stated.label, text=stated.text)


def _get_data(member: Member) -> bytes:
    return member.data


def _position(sample: Sample) -> int:
    return sample.offset


def _folder_of(member: str) -> str:
    """Return the last folder in the name of a member."""
    return member.rpartition("/")[0].rpartition("/")[2]


def _sample(member: Member, name: str, class_name: str) -> Sample:
    return Sample(
        sample_key(member.name),
        name,
        class_name,
        member.offset,
        len(member.data),
        hashlib.sha256(member.data).digest(),
        checksum(member.data),
    )
