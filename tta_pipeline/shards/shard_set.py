"""A shard set on disk: manifest, sample index and checksums, checked against each other."""

import json
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tta_pipeline.data.images.listing import MAX_FILE_BYTES
from tta_pipeline.data.images.remote_shards import REMOTE_FILE, RemoteCell, read_remote_cell
from tta_pipeline.data.labels.class_map import ClassMap
from tta_pipeline.errors import ManifestError
from tta_pipeline.shards.checksums import CHECKSUMS_FILE, Digests, SampleCheck, encode_checksums, read_checksums
from tta_pipeline.shards.expected_shard_set import ANYTHING, ExpectedShardSet
from tta_pipeline.shards.manifest import MANIFEST_FILE, read_manifest
from tta_pipeline.shards.sample_index import SAMPLES_SCHEMA, SampleIndex, read_table
from tta_pipeline.shards.set_facts import Manifest, ShardFacts
from tta_pipeline.util.files import advice, hash_file, read_if_sha256_matches, write_atomically
from tta_pipeline.util.short_lists import abbreviate_list

SAMPLES_FILE = "samples.parquet"

VERIFIED_FILE = "verified.json"


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
            data = read_if_sha256_matches(path, manifest.samples_sha256)
        except OSError as error:
            raise ManifestError(
                f"{path} cannot be read ({error.strerror}); expected the sample index: rematerialize this cell's "
                "shard_manifest"
            ) from error
        if data is None:
            raise ManifestError(
                f"{path} does not hash to the value in {MANIFEST_FILE}; expected sha256 {manifest.samples_sha256}: "
                "rematerialize this cell's shard_manifest"
            )
        try:
            index = SampleIndex(table=read_table(data).cast(SAMPLES_SCHEMA))
        except (pa.ArrowException, ValueError) as error:
            raise ManifestError(
                f"{path} is damaged ({error}); expected a Parquet file with the sample index: rematerialize this "
                "cell's shard_manifest"
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

        For shards at URLs, the server's facts are compared, and each sample when it is read. For shards on disk, sizes
        are always compared. A shard is hashed again if its inode, size or modification time has changed
        since it was last hashed.

        Raises:
            ManifestError: a shard is missing or differs; the message names the first three.
        """
        if self.remote is not None:
            self._require_same_on_server(self.remote)
            return
        if problems := list(find_damage(self.folder, self.manifest.shards)):
            forget_verified(self.folder)
            raise ManifestError(
                f"{abbreviate_list(problems, '; ')}; expected the shards that the manifest lists: rerun `tta-pipeline "
                "run` to rebuild them, or fetch third-party shards again"
            )
        self.note_verified()

    def note_verified(self) -> None:
        """Record that the shards on this machine match the hashes in the manifest.

        Without this record the shards are hashed again before the next run, so a failure to write it is harmless.
        """
        if self.remote is not None:
            return
        stamps = {shard.name: _stamp(self.folder / shard.name, shard.sha256) for shard in self.manifest.shards}
        if stamps != _read_verified(self.folder):
            with suppress(OSError):
                write_atomically(self.folder / VERIFIED_FILE, json.dumps(stamps, indent=1).encode())

    def _require_same_on_server(self, remote: RemoteCell) -> None:
        stated = {shard.name: shard.shard_bytes for shard in self.manifest.shards}
        located = {shard.name: shard.size_bytes for shard in remote.shards}
        problems = list(remote.find_changes())
        if stated != located:
            problems.append(f"{self.folder / REMOTE_FILE} and {MANIFEST_FILE} list different shards")
        if problems:
            raise ManifestError(
                f"{'; '.join(problems)}; expected unchanged shards: rematerialize this cell's tar_shards and "
                "shard_manifest"
            )

    def add_checksums(self, checksums: Digests) -> Self:
        """Write the *checksums* of the samples in the index, and return the set with them."""
        write_checksums(self.folder, checksums, self.manifest.samples_sha256)
        return replace(self, checksums=checksums)


def find_damage(folder: Path, shards: Iterable[ShardFacts]) -> Iterator[str]:
    """Yield a sentence on each of *shards* that is missing from *folder* or differs there.

    A shard is hashed only if its inode, size or modification time has changed since it was last hashed.
    """
    verified = _read_verified(folder)
    for shard in shards:
        path = folder / shard.name
        if not path.is_file():
            yield f"{path} is missing; expected {shard.shard_bytes} bytes"
        elif path.stat().st_size != shard.shard_bytes:
            yield f"{path} has {path.stat().st_size} bytes; expected {shard.shard_bytes}"
        elif verified.get(shard.name) != _stamp(path, shard.sha256) and hash_file(path) != shard.sha256:
            yield f"{path} does not hash to {shard.sha256}"


def forget_verified(folder: Path) -> None:
    """Let the shards in *folder* be hashed the next time, since one of them turned out to be damaged."""
    with suppress(OSError):
        (folder / VERIFIED_FILE).unlink(missing_ok=True)


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
    """Write the checksums of the samples in the index with the hash *samples_sha256* into *folder*."""
    path = folder / CHECKSUMS_FILE
    try:
        write_atomically(path, encode_checksums(checksums, samples_sha256))
    except OSError as error:
        raise ManifestError(
            f"{path} cannot be written ({error.strerror}); expected a writable folder: {advice(error)}"
        ) from error


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
            f"{path} has {len(index)} samples, and its manifest lists {manifest.num_samples} of {num_classes} classes "
            f"in {num_shards} shards; expected only these labels and shards, images of at most {MAX_FILE_BYTES:,} "
            f"bytes, and classes that hash to {manifest.class_map_sha256}: rematerialize this cell's shard_manifest"
        )


def _stamp(path: Path, sha256: str) -> list[int | str]:
    status = path.stat()
    return [status.st_ino, status.st_size, status.st_mtime_ns, sha256]


def _read_verified(folder: Path) -> dict[str, list[int | str]]:
    try:
        found = json.loads((folder / VERIFIED_FILE).read_bytes())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
