"""Copy a shard set from a folder or a URL, checking every byte against the manifest's hashes during the copy.

Files are read in pieces, several files and pieces at a time (16 pieces, 64 MiB), so that even a distant origin fills
the connection.
"""

import asyncio
import hashlib
import os
from functools import partial
from pathlib import Path
from typing import NamedTuple

from tta_pipeline.data.remote_files import read_in_pieces
from tta_pipeline.data.server_requests import run_and_wait
from tta_pipeline.errors import StreamError
from tta_pipeline.loading.shard_set_folders import Folder
from tta_pipeline.shards.backfill_checksums import backfill_checksums
from tta_pipeline.shards.checksums import CHECKSUMS_FILE, checksum_file_bytes, decode_checksums
from tta_pipeline.shards.manifest import MANIFEST_FILE
from tta_pipeline.shards.set_facts import Manifest
from tta_pipeline.shards.shard_set import SAMPLES_FILE, ShardSet

_NUM_FILES_AT_ONCE = 4
_NUM_TRIES = 2
"""Number of attempts to copy a file, since it may be replaced during a copy."""


def copy_shard_set(origin: Folder, manifest: Manifest, folder: Path) -> None:
    """Copy a shard set into the empty *folder*, verifying every byte.

    The samples' checksums are copied too, or computed if the origin has none.
    """
    (folder / MANIFEST_FILE).write_bytes(manifest.serialise())
    checksums = run_and_wait(_copy_files(origin, manifest, folder))
    shard_set = ShardSet.open(folder)
    shard_set.note_verified()
    # The origin's checksums count only if they are complete and belong to this index.
    known = decode_checksums(checksums, manifest.samples_sha256, manifest.num_samples)
    if known is not None:
        shard_set.add_checksums(known)
    else:
        backfill_checksums(shard_set)


class _File(NamedTuple):
    """A file to copy, with its expected size and hash."""

    name: str
    size_bytes: int | None
    """Size of the file; None if the manifest gives only the hash."""
    sha256: str


async def _copy_files(origin: Folder, manifest: Manifest, folder: Path) -> bytes:
    """Copy index and shards into *folder*, several at a time; return the file of checksums, empty if there is none."""
    places = asyncio.Semaphore(_NUM_FILES_AT_ONCE)
    files = [_File(SAMPLES_FILE, None, manifest.samples_sha256)]
    files += [_File(shard.name, shard.shard_bytes, shard.sha256) for shard in manifest.shards]

    try:
        async with asyncio.TaskGroup() as group:
            for file in files:
                group.create_task(_copy_file(origin, file, folder / file.name, places))
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None
    try:
        return await origin.read(CHECKSUMS_FILE, 0, checksum_file_bytes(manifest.num_samples))
    except StreamError:
        return b""


async def _copy_file(origin: Folder, file: _File, target: Path, places: asyncio.Semaphore) -> None:
    async with places:
        for _ in range(_NUM_TRIES):
            found = await _copy_and_hash(origin, file, target)
            if found == file.sha256:
                return
    raise StreamError(
        f"{origin}/{file.name}: found sha256 {found}; expected {file.sha256}, as in the manifest, so the file was "
        "damaged or replaced: put the file there that the manifest describes"
    )


async def _copy_and_hash(origin: Folder, file: _File, target: Path) -> str:
    """Copy a file, and return the hash of the written bytes."""
    digest = hashlib.sha256()

    def take(data: bytes) -> None:
        digest.update(data)
        out.write(data)

    with target.open("wb") as out:
        if file.size_bytes is None:
            await asyncio.to_thread(take, await origin.read_whole(file.name))
        else:
            await read_in_pieces(partial(origin.read, file.name), file.size_bytes, take)
        out.flush()
        await asyncio.to_thread(os.fsync, out.fileno())
    return digest.hexdigest()
