"""Compare third-party shards with the totals in a file next to them: numbers of shards and samples, and a checksum."""

import hashlib
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from tta_pipeline.data.images.shard_files import find_shard_files
from tta_pipeline.data.images.shard_layouts import StatedTotals, find_stated_totals
from tta_pipeline.errors import ManifestError
from tta_pipeline.results.shard_set_rows import MEASUREMENTS_FILE
from tta_pipeline.shards.checksums import CHECKSUMS_FILE
from tta_pipeline.shards.manifest import MANIFEST_FILE
from tta_pipeline.shards.shard_set import SAMPLES_FILE, VERIFIED_FILE
from tta_pipeline.util.plurals import count_of

_OUR_FILES = frozenset({MANIFEST_FILE, SAMPLES_FILE, CHECKSUMS_FILE, VERIFIED_FILE, MEASUREMENTS_FILE})


def require_stated_totals(shards: Sequence[Path], num_samples: int) -> None:
    """Compare *shards* with *num_samples* samples with the totals in the files that the layouts put next to them."""
    folders = {path.resolve().parent for path in shards}
    for folder in folders:
        for file, stated in find_stated_totals(folder):
            parts = {part for part in stated.num_samples for path in shards if path.name.startswith(part)}
            if len(folders) == len(parts) == 1 and (expected := stated.num_samples[parts.pop()]) != num_samples:
                raise ManifestError(
                    f"{folder} has {count_of(num_samples, 'sample')}, but {file} lists {expected:,}; expected the "
                    "same number: fetch the missing shards"
                )
            _require_every_shard(folder, file, stated)
            _require_checksum(folder, file, stated)


def _require_every_shard(folder: Path, file: str, stated: StatedTotals) -> None:
    if stated.num_shards is not None and (found := len(find_shard_files(folder))) != stated.num_shards:
        raise ManifestError(
            f"{folder} has {count_of(found, 'shard')}, but {file} lists {stated.num_shards:,}; expected the same "
            f"number: fetch the missing shards, or remove {file} to adopt the shards as they are"
        )


def _require_checksum(folder: Path, file: str, stated: StatedTotals) -> None:
    if stated.folder_md5 is None:
        return
    found = _folder_md5(folder, _OUR_FILES | {file}, stated.added_later)
    if found != stated.folder_md5:
        raise ManifestError(
            f"The files in {folder} have the combined MD5 {found}, but {file} lists {stated.folder_md5}; expected the "
            "same MD5, which does not show which file was changed, added or removed: fetch all files again, or "
            f"remove {file} to adopt them as they are"
        )


def _folder_md5(folder: Path, later_files: Collection[str], later_folders: Collection[str]) -> str:
    digest = hashlib.md5(usedforsecurity=False)
    for file_md5 in sorted(_file_md5s(folder, later_files, later_folders)):
        digest.update(file_md5.encode())
    return digest.hexdigest()


def _file_md5s(folder: Path, later_files: Collection[str], later_folders: Collection[str]) -> Iterator[str]:
    for path in folder.rglob("*"):
        is_later = path.name in later_files or path.relative_to(folder).parts[0] in later_folders
        if path.is_file() and not is_later:
            with path.open("rb") as file:
                yield hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
