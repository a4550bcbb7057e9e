"""Reading one shard, with other code than wrote it; any process can do it."""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from tta_pipeline.errors import ManifestError
from tta_pipeline.images import read_image_header
from tta_pipeline.names import require_unicode
from tta_pipeline.shards.checksums import checksum
from tta_pipeline.shards.naming import sample_key, source_name
from tta_pipeline.shards.tar import Member, TarReader
from tta_pipeline.sources.existing_shards import stated_class

IMAGE_EXTENSIONS = frozenset({"jpg", "jpeg", "png", "bmp", "webp", "npy"})
LABEL_EXTENSIONS = frozenset({"cls", "json"})
"""Extensions of label members; with images, all that a shard may hold: nothing that a careless reader would execute."""


class Sample(NamedTuple):
    """One sample as found in a shard. A plain tuple, because there are millions."""

    key: str
    source_name: str
    class_name: str
    offset: int
    size_bytes: int
    sha256: bytes
    checksum: bytes
    """Checksum of the bytes whose sha256 is compared with the writer's record; empty if they were not read."""
    label: int | None = None
    """Label from an integer `.cls` member of a third-party shard."""


class ShardContents(NamedTuple):
    """Everything that one shard holds."""

    name: str
    shard_bytes: int
    sha256: str
    samples: list[Sample]

    def __reduce__(self) -> tuple[Any, ...]:
        # Sending named tuples from another process takes five times as long as tuples.
        return _contents, (self.name, self.shard_bytes, self.sha256, [tuple(sample) for sample in self.samples])


class ShardToRead(NamedTuple):
    """A shard to read, and whether it is ours."""

    path: Path
    is_foreign: bool
    """Whether it is third-party: its images are then checked too, as our writer does before it hashes."""


def read_shard(shard: ShardToRead, /, advance: Callable[[int, int], None] = lambda *_: None) -> ShardContents:
    """Read every byte of a shard; call *advance* now and then with samples and bytes done.

    Raises:
        ManifestError: the shard is not an intact archive of images and labels.
    """
    samples: list[Sample] = []
    classes: dict[str, str] = {}
    name_of = _plain_name if shard.is_foreign else source_name
    tally = _Tally(advance)
    with shard.path.open("rb") as file:
        reader = TarReader(shard.path, file)
        for member in reader.members():
            extension = _allowed_extension(shard.path, member)
            if extension in IMAGE_EXTENSIONS:
                require_unicode(member.name, of=shard.path, error=ManifestError)
                if shard.is_foreign:
                    _require_image(shard.path, member)
                samples.append(_sample(member, name_of(member.name)))
                tally.add(len(member.data))
            elif extension == "cls":
                classes[sample_key(member.name)] = member.data.decode("utf-8", "replace").strip()
        tally.flush()
    if shard.is_foreign:
        samples = [_with_class(shard.path, sample, classes) for sample in samples]
    return ShardContents(shard.path.name, reader.size_bytes, reader.sha256, samples)


class _Tally:
    """Counts what is done and reports it by the hundred: a report for each sample takes longer than reading it."""

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


def _contents(name: str, shard_bytes: int, sha256: str, samples: list[Any]) -> ShardContents:
    return ShardContents(name, shard_bytes, sha256, [Sample._make(sample) for sample in samples])


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
        raise ManifestError(f"{path}: {member.name} at byte {member.offset} is not an intact image: {error}") from error


def _sample(member: Member, name: str) -> Sample:
    return Sample(
        sample_key(member.name),
        name,
        name.rpartition("/")[0].rpartition("/")[2],
        member.offset,
        len(member.data),
        hashlib.sha256(member.data).digest(),
        checksum(member.data),
    )


def _with_class(path: Path, sample: Sample, classes: dict[str, str]) -> Sample:
    stated = stated_class(sample.source_name, classes.get(sample.key))
    if stated is None:
        raise ManifestError(f"{path}: sample {sample.key} has neither a class folder nor a .cls member; expected one")
    return sample._replace(class_name=stated.name, label=stated.label)
