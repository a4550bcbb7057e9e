"""The checksum in `metadata.json` beside shards made by Graphcore's `create_webdataset.py`.

It is the md5 of the sorted md5s of all files that the folder held before `metadata.json`, so it cannot tell which file
has changed. See `datasets/create_webdataset.py` and `validate_dataset.py` in applications/pytorch/cnns of
github.com/graphcore/examples, release 2.4.0.
"""

import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tta_pipeline.errors import ManifestError
from tta_pipeline.shards.checksums import CHECKSUMS_FILE
from tta_pipeline.shards.manifest import MANIFEST_FILE
from tta_pipeline.shards.shard_set import SAMPLES_FILE, VERIFIED_FILE
from tta_pipeline.util.files import open_file, read_file

METADATA_FILE = "metadata.json"
_SPLITS = ("train", "validation")
_ADDED_LATER = frozenset({METADATA_FILE, MANIFEST_FILE, SAMPLES_FILE, CHECKSUMS_FILE, VERIFIED_FILE})
_ADDED_FOLDER = "distributed"
"""Folder that `distributed_webdataset.py` adds; Graphcore's own validation fails afterwards."""
_MAX_BYTES = 2**20


def require_metadata_matches(shards: Sequence[Path], num_samples: int) -> None:
    """Compare *shards* with the sample count and the checksum in the `metadata.json` beside them, if there is one.

    Raises:
        ManifestError: the count or the checksum differs.
    """
    folders = {path.resolve().parent for path in shards}
    for folder in folders:
        stated = _metadata(folder / METADATA_FILE)
        if stated is None:
            continue
        splits = {split for split in _SPLITS for path in shards if path.name.startswith(f"{split}-")}
        lengths = [stated.get(f"{split}_length") for split in splits]
        if len(folders) == len(splits) == 1 and isinstance(lengths[0], int) and lengths[0] != num_samples:
            raise ManifestError(
                f"{folder}: found {num_samples:,} samples; expected {lengths[0]:,} as {METADATA_FILE} says: fetch the "
                "missing shards"
            )
        found = _checksum(folder)
        if found != stated["checksum"]:
            raise ManifestError(
                f"{folder}: found files that hash to {found}; expected {stated['checksum']} as {METADATA_FILE} says. "
                "This checksum cannot tell which file has changed, is missing or was added: fetch them again, or "
                f"remove {METADATA_FILE} to adopt them as they are"
            )


def _metadata(path: Path) -> dict[str, Any] | None:
    """Return the content of *path* if it is a `metadata.json` of Graphcore's, else None."""
    if not path.is_file() or path.stat().st_size > _MAX_BYTES:
        return None
    try:
        found = json.loads(read_file(path, limit_bytes=_MAX_BYTES))
    except (RecursionError, ValueError):
        return None
    is_theirs = isinstance(found, dict) and all(f"{split}_length" in found for split in _SPLITS)
    return found if is_theirs and re.fullmatch(r"[0-9a-f]{32}", str(found.get("checksum"))) else None


def _checksum(folder: Path) -> str:
    digest = hashlib.md5(usedforsecurity=False)
    for file_md5 in sorted(_file_md5s(folder)):
        digest.update(file_md5.encode())
    return digest.hexdigest()


def _file_md5s(folder: Path) -> Iterator[str]:
    for path in folder.rglob("*"):
        is_later = path.name in _ADDED_LATER or path.relative_to(folder).parts[0] == _ADDED_FOLDER
        if path.is_file() and not is_later:
            with open_file(path) as file:
                yield hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
