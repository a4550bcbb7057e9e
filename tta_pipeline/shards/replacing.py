"""A check for foreign files in a cell's folder, because the whole folder is replaced."""

import re
from collections.abc import Collection
from pathlib import Path

from tta_pipeline.errors import ShardError
from tta_pipeline.shards.checksums import CHECKSUMS_FILE
from tta_pipeline.shards.manifest import MANIFEST_FILE, WRITER_FILE
from tta_pipeline.shards.shard_set import SAMPLES_FILE, VERIFIED_FILE
from tta_pipeline.util.locations import CLASS_MAP_FILE
from tta_pipeline.util.short_lists import abbreviate_list

_OWN_FILES = frozenset({MANIFEST_FILE, SAMPLES_FILE, CHECKSUMS_FILE, WRITER_FILE, VERIFIED_FILE, CLASS_MAP_FILE})
_OWN_SHARD = re.compile(r".+-\d+-\d{5}\.tar")
_OF_FILE_SYSTEMS = re.compile(r"\.unpublished-.*|\._.*|\.DS_Store|\.nfs.*")


def require_replaceable(folder: Path, shard_names: Collection[str] = ()) -> None:
    """Refuse to replace *folder* if it contains anything that is not part of one of our shard sets.

    Args:
        folder: Folder for a shard set.
        shard_names: Names of our shards that do not follow the writer's own pattern.

    Raises:
        ShardError: the folder contains something else.
    """
    if folder.is_dir() and (others := sorted(p.name for p in folder.iterdir() if not _is_ours(p, shard_names))):
        raise ShardError(
            f"{folder}: found {abbreviate_list(others)}, which this project did not write; expected an empty folder or "
            "one of our shard sets, since the whole folder is replaced: give another folder, or move these away"
        )


def _is_ours(path: Path, shard_names: Collection[str]) -> bool:
    if path.is_symlink():
        return path.suffix in (".tar", ".gz", ".tgz")
    if path.is_dir():
        return False
    name = path.name
    is_named = name in _OWN_FILES or name in shard_names
    return is_named or bool(_OWN_SHARD.fullmatch(name) or _OF_FILE_SYSTEMS.fullmatch(name))
