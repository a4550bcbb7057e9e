"""The manifest of a shard set: its verified content, and the position of every sample.

<corruption>/<severity>/
  fog-5-00000.tar ...   the shards
  writer.json           the writer's record of the shards; present only if the writer finished
  samples.parquet       for each sample: key, source name, label, shard, offset, size_bytes, sha256
  checksums.xxh64       for each sample: the checksum that is compared at every read; see `checksums.py`
  manifest.json         facts of the set and of each shard, and the hash of samples.parquet
  verified.json         the shards that were hashed on this machine and match the manifest; safe to remove
  remote.json           in place of the shards: their URLs, and the server's facts about each
"""

import errno
import hashlib
import json
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Literal, Self, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import Field, JsonValue, ValidationError

from tta_pipeline.data.labels.class_map import ClassMap
from tta_pipeline.data.sources.remote_shards import REMOTE_FILE, RemoteCell, read_remote_cell
from tta_pipeline.data.sources.shard_files import select_names
from tta_pipeline.errors import ManifestError
from tta_pipeline.shards.checksums import CHECKSUMS_FILE, Digests, SampleCheck, encode_checksums, read_checksums
from tta_pipeline.shards.expected_shard_set import ANYTHING, ExpectedShardSet
from tta_pipeline.shards.parquet_files import read_bounded_table
from tta_pipeline.util.config_model import ConfigModel
from tta_pipeline.util.files import hash_file, read_file, read_if_sha256_matches, write_atomically
from tta_pipeline.util.limits import MAX_FILE_BYTES
from tta_pipeline.util.names import abbreviate_list
from tta_pipeline.util.partitions import Cell

MANIFEST_FILE = "manifest.json"
SAMPLES_FILE = "samples.parquet"
WRITER_FILE = "writer.json"
VERIFIED_FILE = "verified.json"
MAX_RECORD_BYTES = 64 * 2**20
_LEAST_BYTES = 2**20
_MOST_ROW_BYTES = 2**13
"""Most bytes of a row of the index: a key and a source name, each a path of at most 4,096 bytes."""
_MOST_NOTE_BYTES = 2**11
"""Most bytes of a shard in `verified.json`: its name, 255 bytes that JSON may write as 6 each, and four values."""

Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Record = TypeVar("Record", bound=ConfigModel)
Count = Annotated[int, Field(ge=0)]
ShardName = Annotated[str, Field(pattern=r"^[^./][^/\x00]*\.tar$")]

SAMPLES_SCHEMA = pa.schema(
    [
        ("key", pa.string()),
        ("source_name", pa.string()),
        ("label", pa.int32()),
        ("shard", pa.int32()),
        ("offset", pa.int64()),
        ("size_bytes", pa.int64()),
        ("sha256", pa.binary(32)),
    ]
)


class ShardFacts(ConfigModel):
    """One tar file."""

    name: ShardName
    num_samples: Count
    shard_bytes: Count
    sha256: Sha256


class SkippedImage(ConfigModel):
    """An image that was left out, and why."""

    name: str
    reason: str


class SourceFacts(ConfigModel):
    """Where the samples came from."""

    kind: str
    generated: bool
    """Whether this project generated the images; results on them are not results on a published data set."""
    recipe: dict[str, JsonValue] | None = None
    """Settings with which this project generated the images; None for other images, and in older shard sets."""
    version: str
    """Digest of the source's listing."""
    num_images: Count
    """Number of images in the listing, including skipped ones."""
    num_hidden: Count
    num_strays: Count
    skipped: tuple[SkippedImage, ...] = ()
    """Damaged images that were left out, as the settings allow."""
    num_foreign: Count = 0
    """Number of images of foreign classes that were left out, as the settings allow."""
    foreign_classes: tuple[str, ...] = ()

    @property
    def num_taken(self) -> int:
        """Number of images that must be in the shards."""
        return self.num_images - len(self.skipped) - self.num_foreign


class StoredOrder(ConfigModel):
    """The order of the samples in the shards."""

    name: str
    seed: int
    sha256: Sha256
    """sha256 of the keys, one per line, in that order."""


class StoredEncoding(ConfigModel):
    """Processing of the images before they were stored; a loader does not repeat it."""

    format: Literal["raw", "tensor"] = "raw"
    resize: int | None = None
    center_crop: int | None = None
    quality: int | None = None
    function: str | None = None
    """`module:name` of the function that was applied to each decoded image, before resizing and cropping."""
    function_sha256: Sha256 | None = None
    """sha256 of the function's code without comments: its module, and the modules beside it that it imports."""


class SetFacts(ConfigModel):
    """The facts about a shard set that the writer's record and the manifest share."""

    benchmark: str
    corruption: str
    severity: Count
    source: SourceFacts
    class_map_sha256: Sha256
    order: StoredOrder
    encoding: StoredEncoding = StoredEncoding()
    shards: tuple[ShardFacts, ...]
    num_samples: Count
    payload_bytes: Count
    """Sum of the image files' sizes."""

    @property
    def cell(self) -> Cell:
        """The cell that the set holds."""
        return Cell(corruption=self.corruption, severity=self.severity)

    @property
    def shard_bytes(self) -> int:
        """Sum of the shards' sizes."""
        return sum(shard.shard_bytes for shard in self.shards)


class WriterRecord(SetFacts):
    """The writer's record of the shards that it wrote."""

    format: Literal["tta_pipeline/shards"] = "tta_pipeline/shards"
    version: Literal[1] = 1
    payloads_sha256: Sha256
    """sha256 of the concatenated sha256 of every image, as read from the source, in stored order."""
    fingerprint: Sha256
    """Hash of everything that determines the shards; if it is unchanged, there is nothing to write."""
    wall_s: float
    """Seconds from reading the first image to syncing the last byte to disk."""


class Manifest(SetFacts):
    """The content of a shard set, as read back from the shards."""

    format: Literal["tta_pipeline/manifest"] = "tta_pipeline/manifest"
    version: Literal[1] = 1
    classes: tuple[str, ...]
    """Class names in the order of their labels."""
    samples_sha256: Sha256
    """Hash of `samples.parquet`."""
    files: tuple[str, ...] = ()
    """Patterns of the shards' names, if the set was adopted from a folder with other tars; else every tar counts."""

    def serialise(self) -> bytes:
        """Return the bytes of `manifest.json`: no times or machine names, so equal sets have equal bytes."""
        unsaid = {"files": not self.files, "source": {"recipe"} if self.source.recipe is None else False}
        content = self.model_dump(mode="json", exclude={name: what for name, what in unsaid.items() if what})
        return (json.dumps(content, sort_keys=True, indent=1, allow_nan=False) + "\n").encode()

    @cached_property
    def sha256(self) -> str:
        """Hash of `manifest.json`, the identity of the shard set."""
        return hashlib.sha256(self.serialise()).hexdigest()


@dataclass(frozen=True, kw_only=True)
class SampleIndex:
    """The samples of a shard set in stored order, by column."""

    table: pa.Table

    def __len__(self) -> int:
        return int(self.table.num_rows)

    def serialise(self) -> bytes:
        """Return the bytes of `samples.parquet`."""
        sink = pa.BufferOutputStream()
        pq.write_table(self.table, sink, compression="zstd", write_statistics=False)
        return bytes(sink.getvalue())

    @cached_property
    def keys(self) -> list[str]:
        """The webdataset key of each sample."""
        return list(self.table["key"].to_pylist())

    @cached_property
    def labels(self) -> npt.NDArray[np.int64]:
        """The label of each sample, shape (N,)."""
        return self._column("label")

    @cached_property
    def shards(self) -> npt.NDArray[np.int64]:
        """The position of each sample's shard in the manifest, shape (N,)."""
        return self._column("shard")

    @cached_property
    def offsets(self) -> npt.NDArray[np.int64]:
        """Where each sample's bytes begin in its shard, shape (N,)."""
        return self._column("offset")

    @cached_property
    def sizes(self) -> npt.NDArray[np.int64]:
        """The number of each sample's bytes, shape (N,)."""
        return self._column("size_bytes")

    def _column(self, name: str) -> npt.NDArray[np.int64]:
        column: npt.NDArray[np.int64] = self.table[name].to_numpy().astype(np.int64)
        return column


@dataclass(frozen=True, kw_only=True)
class ShardSet:
    """A cell's folder with its manifest and sample index, checked against each other."""

    folder: Path
    manifest: Manifest
    index: SampleIndex
    checksums: Digests | None = None
    """Checksums of the samples' bytes; None if they are missing: every read then compares the sample's sha256."""
    remote: RemoteCell | None = None
    """URLs of the shards, if they are not in the folder."""

    @classmethod
    def open(cls, folder: Path, belonging: ExpectedShardSet = ANYTHING) -> Self:
        """Read the manifest and the sample index of *folder*.

        Raises:
            ManifestError: a file is missing, damaged or of another format, the two disagree, or they do not fit
                *belonging*.
        """
        manifest = read_manifest(folder, belonging)
        path = folder / SAMPLES_FILE
        try:
            _require_file(path)
            limit_bytes = _LEAST_BYTES + manifest.num_samples * _MOST_ROW_BYTES
            data = read_if_sha256_matches(path, manifest.samples_sha256, limit_bytes=limit_bytes)
        except OSError as error:
            raise ManifestError(
                f"{path} cannot be read ({error.strerror}); expected the sample index: materialize the shard_manifest "
                "of this cell again"
            ) from error
        if data is None:
            raise ManifestError(
                f"{path} does not hash to {manifest.samples_sha256} as {MANIFEST_FILE} says; "
                "materialize the shard_manifest of this cell again"
            )
        try:
            table = read_bounded_table(data, num_rows=manifest.num_samples, row_bytes=_MOST_ROW_BYTES)
            index = SampleIndex(table=table.cast(SAMPLES_SCHEMA))
        except (pa.ArrowException, ValueError) as error:
            raise ManifestError(
                f"{path} is damaged ({error}); materialize the shard_manifest of this cell again"
            ) from error
        _require_consistent(path, manifest, index)
        checksums = read_checksums(folder, manifest.samples_sha256, len(index))
        remote = read_remote_cell(folder)
        return cls(folder=folder, manifest=manifest, index=index, checksums=checksums, remote=remote)

    def select_samples(self, positions: npt.NDArray[np.int64]) -> Self:
        """Return this set with only the samples at *positions*, shape (M,), in its index."""
        checksums = None if self.checksums is None else self.checksums[positions]
        return replace(self, index=SampleIndex(table=self.index.table.take(positions)), checksums=checksums)

    def sample_check(self) -> SampleCheck:
        """Return the check that every sample's bytes must pass when they are read."""
        return SampleCheck.of(self.index.table["sha256"], self.checksums)

    def require_intact(self) -> None:
        """Make sure that every shard is the one that the manifest describes.

        For shards at URLs, the server's facts are compared; each sample is compared when it is read. For shards on
        disk, sizes are always compared. A shard is hashed again if its inode, size or modification time has changed
        since it was last hashed.

        Raises:
            ManifestError: a shard is missing or differs; the message names the first three.
        """
        if self.remote is not None:
            self._require_same_on_server(self.remote)
            return
        verified = _read_verified(self.folder, len(self.manifest.shards))
        problems = []
        for shard in self.manifest.shards:
            path = self.folder / shard.name
            if not path.is_file():
                problems.append(f"{path} is missing; expected {shard.shard_bytes} bytes")
            elif path.stat().st_size != shard.shard_bytes:
                problems.append(f"{path} has {path.stat().st_size} bytes; expected {shard.shard_bytes}")
            elif verified.get(shard.name) != _stamp(path, shard.sha256) and hash_file(path) != shard.sha256:
                problems.append(f"{path} does not hash to {shard.sha256}")
        if problems:
            raise ManifestError(f"{abbreviate_list(problems, '; ')}; materialize the tar_shards of this cell again")
        self.note_verified()

    def note_verified(self) -> None:
        """Note that the shards on this machine match the hashes in the manifest.

        Without this note the shards are hashed again before the next run, so a failure to write it does no harm.
        """
        if self.remote is not None:
            return
        stamps = {shard.name: _stamp(self.folder / shard.name, shard.sha256) for shard in self.manifest.shards}
        if stamps != _read_verified(self.folder, len(stamps)):
            with suppress(OSError):
                write_atomically(self.folder / VERIFIED_FILE, json.dumps(stamps, indent=1).encode())

    def _require_same_on_server(self, remote: RemoteCell) -> None:
        stated = {shard.name: shard.shard_bytes for shard in self.manifest.shards}
        located = {shard.name: shard.size_bytes for shard in remote.shards}
        problems = list(remote.find_changes())
        if stated != located:
            problems.append(f"{self.folder / REMOTE_FILE} has other shards than {MANIFEST_FILE}")
        if problems:
            raise ManifestError("; ".join([*problems, "materialize tar_shards and shard_manifest of this cell again"]))

    def add_checksums(self, checksums: Digests) -> Self:
        """Write the *checksums* of the samples in the index, and return the set with them.

        Raises:
            ManifestError: the checksums cannot be written.
        """
        write_checksums(self.folder, checksums, self.manifest.samples_sha256)
        return replace(self, checksums=checksums)


def find_present_shards(folder: Path, manifest: Manifest) -> tuple[Path, ...]:
    """Return the tars in *folder* that belong to the set of *manifest* by their names, sorted by name."""
    there = tuple(sorted(folder.glob("[!.]*.tar")))
    chosen = select_names({path.name for path in there}, manifest.files) if manifest.files else None
    return tuple(path for path in there if chosen is None or path.name in chosen)


def publish_manifest(folder: Path, manifest: Manifest, index: SampleIndex, checksums: Digests | None) -> ShardSet:
    """Write the sample index, the checksums if they are known and, last, the manifest into *folder*."""
    write_atomically(folder / SAMPLES_FILE, index.serialise())
    if checksums is not None:
        write_checksums(folder, checksums, manifest.samples_sha256)
    write_atomically(folder / MANIFEST_FILE, manifest.serialise())
    remote = read_remote_cell(folder)
    shard_set = ShardSet(folder=folder, manifest=manifest, index=index, checksums=checksums, remote=remote)
    shard_set.note_verified()
    return shard_set


def write_checksums(folder: Path, checksums: Digests, samples_sha256: str) -> None:
    """Write the checksums of the samples in the index with the hash *samples_sha256* into *folder*.

    Raises:
        ManifestError: the checksums cannot be written.
    """
    path = folder / CHECKSUMS_FILE
    try:
        write_atomically(path, encode_checksums(checksums, samples_sha256))
    except OSError as error:
        raise ManifestError(f"{path} cannot be written ({error.strerror}); expected a file of this project") from error


def read_manifest(folder: Path, belonging: ExpectedShardSet = ANYTHING) -> Manifest:
    """Read the manifest of *folder*.

    Raises:
        ManifestError: the manifest is missing, damaged or of another format, or does not fit *belonging*.
    """
    path = folder / MANIFEST_FILE
    manifest = read_record(path, Manifest)
    belonging.require(manifest, path)
    return manifest


def read_record(path: Path, kind: type[Record]) -> Record:
    """Read `writer.json` or `manifest.json`.

    Raises:
        ManifestError: the file is missing, larger than 64 MiB, not JSON, or not of this kind and version.
    """
    try:
        _require_file(path)
        data = read_file(path, limit_bytes=MAX_RECORD_BYTES)
    except OSError as error:
        raise ManifestError(
            f"{path} cannot be read ({error.strerror}); materialize this cell's {_step(path)}"
        ) from error
    try:
        return kind.model_validate(json.loads(data, object_pairs_hook=_unique_fields, parse_constant=_refuse_constant))
    except ValidationError as error:
        problem = error.errors()[0]
        field = ".".join(map(str, problem["loc"]))
        raise ManifestError(
            f"{path}: {field} is {problem['input']!r:.80}; {problem['msg']}. Another version of tta_pipeline may have "
            f"written it: use that one, or materialize this cell's {_step(path)} again"
        ) from None
    except (RecursionError, ValueError) as error:
        raise ManifestError(f"{path} is damaged ({error}); materialize this cell's {_step(path)} again") from None


def keys_sha256(keys: list[str]) -> str:
    """Return the hash of sample keys in their order."""
    return hashlib.sha256("\n".join(keys).encode()).hexdigest()


def _require_file(path: Path) -> None:
    """Refuse a *path* that exists and is not a file.

    Raises:
        OSError: *path* is not a file.
    """
    if path.exists() and not path.is_file():
        raise OSError(errno.EINVAL, "it is not a file")


def _require_consistent(path: Path, manifest: Manifest, index: SampleIndex) -> None:
    """Refuse an index or classes that do not match the manifest, and impossible image sizes."""
    num_shards, num_classes = len(manifest.shards), len(manifest.classes)
    is_consistent = (
        len(index) == manifest.num_samples
        and ClassMap(classes=manifest.classes).sha256 == manifest.class_map_sha256
        and ((index.shards >= 0) & (index.shards < num_shards)).all()
        and ((index.labels >= 0) & (index.labels < num_classes)).all()
        and ((index.sizes >= 0) & (index.sizes <= MAX_FILE_BYTES)).all()
    )
    if not is_consistent:
        raise ManifestError(
            f"{path} has {len(index)} samples; the manifest counts {manifest.num_samples}, of {num_classes} classes in "
            f"{num_shards} shards; expected only these labels and shards, images of at most {MAX_FILE_BYTES:,} bytes, "
            f"and classes that hash to {manifest.class_map_sha256}: materialize the shard_manifest of this cell again"
        )


def _step(path: Path) -> str:
    return "tar_shards" if path.name == WRITER_FILE else "shard_manifest"


def _stamp(path: Path, sha256: str) -> list[int | str]:
    status = path.stat()
    return [status.st_ino, status.st_size, status.st_mtime_ns, sha256]


def _read_verified(folder: Path, num_shards: int) -> dict[str, list[int | str]]:
    try:
        found = json.loads(read_file(folder / VERIFIED_FILE, limit_bytes=_LEAST_BYTES + num_shards * _MOST_NOTE_BYTES))
    except (OSError, RecursionError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _unique_fields(pairs: list[tuple[str, object]]) -> dict[str, object]:
    if len({name for name, _ in pairs}) != len(pairs):
        raise ValueError("a field appears twice")
    return dict(pairs)


def _refuse_constant(constant: str) -> float:
    raise ValueError(f"found the number {constant}")
