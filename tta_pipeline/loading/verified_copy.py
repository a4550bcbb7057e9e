"""Copy a shard set from a folder or a URL, checking every byte against the manifest's hashes during the copy."""

import hashlib
import os
from functools import partial
from pathlib import Path

from tta_pipeline.errors import StreamError
from tta_pipeline.loading.shard_set_folders import Folder
from tta_pipeline.shards.backfill_checksums import backfill_checksums
from tta_pipeline.shards.checksums import CHECKSUMS_FILE, decode_checksums
from tta_pipeline.shards.manifest import MANIFEST_FILE
from tta_pipeline.shards.set_facts import Manifest, ShardFacts
from tta_pipeline.shards.shard_set import SAMPLES_FILE, ShardSet
from tta_pipeline.util.daemon_threads import run_at_once

_NUM_FILES_AT_ONCE = 4
_NUM_TRIES = 2
"""Number of attempts to copy a file, since it may be replaced during a copy."""


def copy_shard_set(origin: Folder, manifest: Manifest, folder: Path) -> None:
    """Copy a shard set into the empty *folder*, verifying every byte.

    The samples' checksums are copied too, or computed if the origin has none.

    Raises:
        StreamError: a file cannot be read, or differs from the manifest.
        OSError: *folder* cannot be written.
    """
    (folder / MANIFEST_FILE).write_bytes(manifest.serialise())
    samples = origin.read_whole(SAMPLES_FILE)
    _require_sha256(origin, SAMPLES_FILE, hashlib.sha256(samples).hexdigest(), manifest.samples_sha256)
    (folder / SAMPLES_FILE).write_bytes(samples)
    run_at_once(partial(_copy_shard, origin, folder), manifest.shards, num_threads=_NUM_FILES_AT_ONCE)
    try:
        checksums = origin.read_whole(CHECKSUMS_FILE)
    except StreamError:
        checksums = b""
    shard_set = ShardSet.open(folder)
    shard_set.note_verified()
    # The origin's checksums count only if they are complete and belong to this index.
    known = decode_checksums(checksums, manifest.samples_sha256, manifest.num_samples)
    if known is not None:
        shard_set.add_checksums(known)
    else:
        backfill_checksums(shard_set)


def _copy_shard(origin: Folder, folder: Path, shard: ShardFacts) -> None:
    for _ in range(_NUM_TRIES):
        with (folder / shard.name).open("w+b", buffering=0) as out:
            found = origin.copy(shard, out)
            os.fsync(out.fileno())
        if found == shard.sha256:
            return
    _require_sha256(origin, shard.name, found, shard.sha256)


def _require_sha256(origin: Folder, name: str, found: str, expected: str) -> None:
    if found != expected:
        raise StreamError(
            f"{origin}/{name}: found sha256 {found}; expected {expected}, as in the manifest, so the file was damaged "
            "or replaced: put the file there that the manifest describes"
        )
