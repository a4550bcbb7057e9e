"""A look at a watched folder: images with new content are copied into the folder of the day.

The copies are the ledger. A copy is named by the sha256 of its content, appears whole or not at all, and is never moved
or removed, so each content is in exactly one day, whatever becomes of the file that brought it. Beside the copies,
`seen.json` says which files need not be hashed again; without it, everything is hashed and nothing is counted twice.
"""

import hashlib
import json
import os
import re
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from tta_pipeline.data.sources.folder_tree import IMAGE_SUFFIXES
from tta_pipeline.errors import ShardError, SourceError
from tta_pipeline.util.files import advice, locked, read_file, write_atomically
from tta_pipeline.util.limits import MAX_FILE_BYTES

SEEN_FILE = "seen.json"
_LOCK_FILE = ".lock"
_MOST_SEEN_BYTES = 2**32
_COPY = re.compile(rf"([0-9a-f]{{64}})(?:{'|'.join(map(re.escape, IMAGE_SUFFIXES))})")


class Stamp(NamedTuple):
    """What tells that a file has changed. Copying and renaming set the second, and no program can choose it."""

    size_bytes: int
    changed_ns: int


class Seen(NamedTuple):
    """A file that an earlier look has read."""

    size_bytes: int
    changed_ns: int
    sha256: str | None
    """None: the file could not be read."""


@dataclass(frozen=True, kw_only=True)
class Arriving:
    """Files of the watched folder that no look has read yet, by path below it."""

    settled: Mapping[str, Stamp]
    unsettled: Mapping[str, Stamp]
    """Files that changed just now, and may still be written."""

    @property
    def sha256(self) -> str:
        """Hash of the settled files with their stamps."""
        return hashlib.sha256(json.dumps(sorted(self.settled.items())).encode()).hexdigest()


@dataclass(frozen=True, kw_only=True)
class Look:
    """What a look has found."""

    num_new: int
    """Images that were taken in."""
    num_duplicates: int
    """Files with the content of an image that was there already."""
    num_unsettled: int
    """Files that changed just now; a later look takes them in."""
    refused: tuple[str, ...]
    """Files that cannot be read, with the reason; they are read again when they have changed."""


def find_arriving(root: Path, kept: Path, *, settle_s: float, now_s: float) -> Arriving:
    """Return the files under *root* that no look has read, without reading any.

    Args:
        root: The watched folder.
        kept: The folder of the copies.
        settle_s: Seconds for which a file must not have changed.
        now_s: The present time, in seconds since the epoch.

    Raises:
        SourceError: *root*, or a folder in it, cannot be listed.
    """
    return _arriving(_stamps(root), _read_seen(kept), settled_ns=int((now_s - settle_s) * 1e9))


def take_in(root: Path, kept: Path, *, day: str, settle_s: float, now_s: float) -> Look:
    """Copy each image under *root* whose content is not kept yet into the folder of *day*.

    It can be interrupted at any time, and several processes may call it.

    Args:
        root: The watched folder; nothing is written there.
        kept: The folder of the copies, made if it is missing.
        day: Day of arrival of what is new, such as 2026-11-01.
        settle_s: Seconds for which a file must not have changed.
        now_s: The present time, in seconds since the epoch.

    Raises:
        SourceError: *root*, or a folder in it, cannot be listed.
        ShardError: a copy cannot be written; those before it are kept, and a later look goes on.
    """
    with locked(kept / _LOCK_FILE):
        stamps, seen = _stamps(root), _read_seen(kept)
        arriving = _arriving(stamps, seen, settled_ns=int((now_s - settle_s) * 1e9))
        known = set(kept_contents(kept))
        num_new, num_duplicates, num_unsettled, refused = 0, 0, len(arriving.unsettled), []
        for path, stamp in arriving.settled.items():
            try:
                data = read_file(root / path, limit_bytes=MAX_FILE_BYTES)
                has_changed = _stamp(os.stat(root / path)) != stamp  # noqa: PTH116 - the paths are strings
            except FileNotFoundError:  # gone since it was listed
                continue
            except OSError as error:
                refused.append(f"{root / path}: {error.strerror}")
                seen[path] = Seen(*stamp, None)
                continue
            if has_changed:
                num_unsettled += 1
                continue
            sha256 = hashlib.sha256(data).hexdigest()
            if sha256 in known:
                num_duplicates += 1
            else:
                _keep(kept / day / f"{sha256}{Path(path).suffix.lower()}", data)
                known.add(sha256)
                num_new += 1
            seen[path] = Seen(*stamp, sha256)
        _write_seen(kept, {path: each for path, each in seen.items() if path in stamps})
    return Look(num_new=num_new, num_duplicates=num_duplicates, num_unsettled=num_unsettled, refused=tuple(refused))


def kept_contents(kept: Path) -> Iterator[str]:
    """Yield the sha256 of each image in the folders of days in *kept*."""
    for folder in sorted(path for path in kept.glob("*/") if path.is_dir()):
        yield from (found[1] for name in os.listdir(folder) if (found := _COPY.fullmatch(name)))  # noqa: PTH208 - many


def _keep(path: Path, data: bytes) -> None:
    try:
        write_atomically(path, data)
    except OSError as error:
        raise ShardError(
            f"{path} cannot be written ({error.strerror}); expected a place for the copy of an image that arrived: "
            f"{advice(error)}, then look again"
        ) from error


def _arriving(stamps: Mapping[str, Stamp], seen: Mapping[str, Seen], *, settled_ns: int) -> Arriving:
    fresh = {path: stamp for path, stamp in stamps.items() if path not in seen or seen[path][:2] != stamp}
    return Arriving(
        settled={path: stamp for path, stamp in fresh.items() if stamp.changed_ns <= settled_ns},
        unsettled={path: stamp for path, stamp in fresh.items() if stamp.changed_ns > settled_ns},
    )


def _stamps(root: Path) -> dict[str, Stamp]:
    """Return the stamp of each image file under *root*, by its path below; hidden and empty files are left out."""
    if not root.is_dir():
        raise SourceError(f"{root} is no folder; expected the folder that is watched: correct watch.root, or mount it")
    found: dict[str, Stamp] = {}
    for folder, folders, names in os.walk(root, onerror=_refuse_unlisted):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            if name.startswith(".") or not name.lower().endswith(IMAGE_SUFFIXES):
                continue
            path = os.path.join(folder, name)  # noqa: PTH118 - there may be millions
            try:
                status = os.stat(path)  # noqa: PTH116
            except OSError:  # gone, or a broken link
                continue
            if stat.S_ISREG(status.st_mode) and status.st_size:
                found[os.path.relpath(path, root)] = _stamp(status)
    return found


def _refuse_unlisted(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):
        raise SourceError(f"{error.filename} cannot be listed ({error.strerror}); expected a readable folder")


def _stamp(status: os.stat_result) -> Stamp:
    return Stamp(status.st_size, status.st_ctime_ns)


def _read_seen(kept: Path) -> dict[str, Seen]:
    """Return the files that earlier looks have read; none if it is not known."""
    try:
        # Not pydantic: it refuses names that are not Unicode.
        content = json.loads(read_file(kept / SEEN_FILE, limit_bytes=_MOST_SEEN_BYTES))
        return {path: Seen(*each) for path, each in content.items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}


def _write_seen(kept: Path, seen: Mapping[str, Seen]) -> None:
    write_atomically(kept / SEEN_FILE, json.dumps(seen, separators=(",", ":")).encode())
