"""Copy shard sets to node-local disk before they are read, each completely or not at all, within a limit.

<root>/tta_pipeline-staged/
  <manifest sha256>/        a shard set; while readers hold a shared lock on it, it is not removed
  unfinished-<hex digits>/  a set that is being copied or removed
  lock                      held while a set is copied or removed

The kernel frees both locks when a process ends, even if it is killed. Only folders with these names are removed.
"""

import fcntl
import os
import re
import shutil
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from tta_pipeline.data.sources.remote_shards import read_remote_cell
from tta_pipeline.errors import ManifestError, StreamError
from tta_pipeline.loading.shard_set_folders import Folder, LocalFolder, folder_at
from tta_pipeline.loading.verified_copy import copy_shard_set
from tta_pipeline.shards.manifest import MANIFEST_FILE
from tta_pipeline.shards.set_facts import Manifest
from tta_pipeline.shards.shard_set import ShardSet
from tta_pipeline.util.files import advice, fsync_path, locked, make_cache_folder
from tta_pipeline.util.progress import quiet_reporter

OWN_FOLDER = "tta_pipeline-staged"
_UNFINISHED = "unfinished-"
_UNFINISHED_NAME = re.compile(rf"{_UNFINISHED}[0-9a-f]{{32}}(?:[0-9a-f]{{32}})?")
_STAGED_NAME = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, kw_only=True)
class Stage:
    """A folder on node-local disk that keeps copies of shard sets for the next reader."""

    root: Path
    """Folder on node-local disk; it may contain other files too."""
    limit_bytes: int
    """Largest size of all staged shards together."""
    tell: Callable[[str], None]
    """Function that is called with a message when a shard set is not staged but read in place."""

    @property
    def folder(self) -> Path:
        """The folder below the root that contains only the sets."""
        return self.root / OWN_FOLDER

    @contextmanager
    def shard_set(self, location: str) -> Iterator[ShardSet]:
        """Yield the shard set at *location*, a folder or a URL, on local disk; it stays there until the block ends.

        The set is copied unless it is staged already; the least recently used sets make room. A set that does not fit
        is read in place if its location is a folder. A folder that has only the URLs of its shards is read in place
        too, and its shards are streamed.

        Raises:
            ManifestError: the set has no valid manifest.
            StreamError: the set cannot be read, differs from its manifest, is remote and does not fit, or the stage
                cannot be written to.
        """
        origin = folder_at(location)
        manifest = origin.manifest()
        if isinstance(origin, LocalFolder) and read_remote_cell(origin.path):
            yield ShardSet.open(origin.path)
            return
        with ExitStack() as stack:
            yield self._stage(origin, manifest, stack) or self._open_in_place(origin, manifest)

    def _stage(self, origin: Folder, manifest: Manifest, stack: ExitStack) -> ShardSet | None:
        """Return the staged set, protected from removal until *stack* closes; None if there is no room for it."""
        if manifest.shard_bytes > self.limit_bytes:
            return None
        try:
            if present := self._find_staged(manifest, stack):
                return present
            make_cache_folder(self.folder)
            with locked(self.folder / "lock"):
                if present := self._find_staged(manifest, stack):  # copied by another process meanwhile
                    return present
                self._remove_unfinished()
                if not self._make_room(manifest):
                    return None
                self._copy(origin, manifest)
                return self._find_staged(manifest, stack)
        except OSError as error:
            raise StreamError(
                f"{self.folder}: found {error.strerror} while {origin} was staged; expected a folder with room for "
                f"{manifest.shard_bytes} bytes: {advice(error)}, or set another folder, or a lower limit"
            ) from error

    def _find_staged(self, manifest: Manifest, stack: ExitStack) -> ShardSet | None:
        """Return the set, protected from removal until *stack* closes; None if it is not staged or not intact."""
        folder = self.folder / manifest.sha256
        with ExitStack() as holding:
            try:
                holding.enter_context(_held(folder, fcntl.LOCK_SH))
                shard_set = ShardSet.open(folder)
                if shard_set.manifest.sha256 != manifest.sha256:
                    return None
                shard_set.require_intact()
                # The file system's own clock ticks only every few milliseconds.
                os.utime(folder, ns=(time.time_ns(),) * 2)
            except (FileNotFoundError, ManifestError):
                return None
            stack.enter_context(holding.pop_all())
            return shard_set

    def _open_in_place(self, origin: Folder, manifest: Manifest) -> ShardSet:
        found = f"{origin} has {manifest.shard_bytes} bytes of shards, for which {self.folder} has no room"
        expected = f"limit {self.limit_bytes} bytes, and sets in use stay"
        if not isinstance(origin, LocalFolder):
            raise StreamError(f"{found}; expected shards that fit ({expected}): raise the limit")
        self.tell(f"{found} ({expected}); it is read in place")
        return ShardSet.open(origin.path)

    def _make_room(self, manifest: Manifest) -> bool:
        """Remove sets until the set of *manifest* fits, and any set of the same name; return whether it fits now."""
        kept = sorted(_find_folders(self.folder, _STAGED_NAME), key=lambda folder: folder.stat().st_mtime_ns)
        kept.sort(key=lambda folder: folder.name != manifest.sha256)  # a set of that name can only be a damaged one
        total_bytes = manifest.shard_bytes + sum(map(_shard_bytes, kept))
        for folder in kept:
            if total_bytes <= self.limit_bytes and folder.name != manifest.sha256:
                return True
            size_bytes = _shard_bytes(folder)
            if self._try_remove(folder):
                total_bytes -= size_bytes
        return total_bytes <= self.limit_bytes and not (self.folder / manifest.sha256).exists()

    def _try_remove(self, folder: Path) -> bool:
        """Remove a set unless a process reads it; return whether it is gone."""
        try:
            with _held(folder, fcntl.LOCK_EX | fcntl.LOCK_NB):
                folder.rename(self.folder / f"{_UNFINISHED}{folder.name}")
        except BlockingIOError:
            return False
        self._remove_unfinished()
        return True

    def _copy(self, origin: Folder, manifest: Manifest) -> None:
        folder = self.folder / f"{_UNFINISHED}{uuid.uuid4().hex}"
        folder.mkdir(mode=0o700)
        try:
            copy_shard_set(origin, manifest, folder, quiet_reporter(manifest.cell.key, manifest.num_samples))
            fsync_path(folder / MANIFEST_FILE)
            fsync_path(folder)
            folder.rename(self.folder / manifest.sha256)
            fsync_path(self.folder)
        finally:
            self._remove_unfinished()

    def _remove_unfinished(self) -> None:
        """Remove the remains of failed or killed copies; no copy is running, since the caller holds the lock."""
        for folder in _find_folders(self.folder, _UNFINISHED_NAME):
            shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _held(folder: Path, how: int) -> Iterator[None]:
    """Hold the lock of *folder*.

    Raises:
        FileNotFoundError: the folder is missing, or was removed during the wait.
        BlockingIOError: another process holds the lock, and *how* says not to wait.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, how)
        if not os.path.samestat(folder.stat(), os.fstat(descriptor)):
            raise FileNotFoundError(folder)
        yield
    finally:
        os.close(descriptor)


def _find_folders(parent: Path, pattern: re.Pattern[str]) -> list[Path]:
    """Return the folders in *parent* whose names match *pattern*."""
    return [path for path in parent.iterdir() if pattern.fullmatch(path.name) and path.is_dir()]


def _shard_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.glob("*.tar"))
