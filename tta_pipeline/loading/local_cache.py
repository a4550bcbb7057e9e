"""One cache on node-local disk for everything that later experiments can reuse.

<folder>/
  <64 hex digits>[-...][.kind]   an entry; its name contains the hash of everything that determines it
  unfinished-<bytes>-<entry>     an entry that is being made, with the size for which space was freed
  lock                           held while entries get or lose their names

An entry is a file, and appears whole or not at all. A process that reads or makes an entry holds a lease on it: a
kernel lock, which ends with the process, even if it is killed. Leased entries are never removed to free space, and no
other process makes them.

Nothing here is trusted, since a disk may damage what it keeps. Each kind of entry is checked when it is read:

    copies of shards `loading.copied_shards`        the checksum of each sample that is read from them; the copy of a
                                                    killed process is continued
    decoded cells    `loading.decoded_cache`        a checksum of each sample; these are sealed
    features         `evaluation.feature_cache`     sealed as a whole
"""

import errno
import fcntl
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from tta_pipeline.errors import StreamError
from tta_pipeline.util.files import advice, make_cache_folder, read_sealed
from tta_pipeline.util.locks import is_still, locked

_ENTRY = r"[0-9a-f]{64}(?:-[0-9a-f]+)*(?:\.[a-z]+)?"
_NAME = re.compile(_ENTRY)
_UNFINISHED = re.compile(rf"unfinished-([0-9]+)-({_ENTRY})")
RESUMED = ".tar"
"""Ending of the files that another process can continue."""
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)
"""Error codes of network file systems that cannot lock."""


class _Found(NamedTuple):
    """A file in the folder with the name of an entry or a draft."""

    path: Path
    used_ns: int
    size_bytes: int
    is_unfinished: bool


@dataclass(frozen=True, kw_only=True)
class Draft:
    """An entry that is being made; nobody else makes it meanwhile."""

    cache: "LocalCache"
    name: str
    """Name of the entry."""
    path: Path
    """The file to write to."""
    descriptor: int
    """Open for reading and writing."""

    def publish(self) -> None:
        """Give the entry its name; it stays leased, now for other readers too, until the draft's stack closes.

        Raises:
            OSError: it cannot be renamed, or was removed.
        """
        with self.cache.alone():  # while a lock is exchanged for a weaker one, another process could get it
            _lock(self.descriptor, fcntl.LOCK_SH)
            self.path.rename(self.cache.folder / self.name)


@dataclass(frozen=True, kw_only=True)
class LocalCache:
    """Entries in a folder, within a limit; the least recently used entries are removed first.

    Caches of several processes, or several objects, may share a folder; its locks coordinate them.
    """

    folder: Path
    """Folder that contains only these files; created if missing."""
    limit_bytes: int
    """Largest size of all entries."""
    remedy: str
    """What a user can set if the folder is unusable, for error messages."""

    def lease(self, name: str, stack: ExitStack) -> int | None:
        """Return a descriptor of the entry *name*, which stays until *stack* closes; None if there is no such entry.

        The entry counts as just used.

        Raises:
            OSError: the entry cannot be opened.
        """
        path = self.folder / name
        with ExitStack() as holding:
            try:
                descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:
                return None
            holding.callback(os.close, descriptor)
            _lock(descriptor, fcntl.LOCK_SH)  # waits at most for one process that removes it
            if not is_still(path, descriptor):
                return None
            with suppress(PermissionError):  # an entry of another user
                # The file system's own clock ticks only every few milliseconds.
                os.utime(descriptor, ns=(time.time_ns(),) * 2)
            stack.enter_context(holding.pop_all())
            return descriptor

    def read_sealed(self, name: str) -> bytes | None:
        """Return the data of the file *name*, which `util.files.seal` bound to its name; None if it is missing.

        A damaged file is removed.
        """
        with ExitStack() as stack, suppress(OSError):
            if self.lease(name, stack) is not None:
                data = read_sealed(self.folder / name, name)
                if data is None:
                    self.discard(name)
                return data
        return None

    def write(self, name: str, data: bytes) -> bool:
        """Write the file *name*; return whether this call did so (see `begin`).

        Raises:
            OSError: the folder or the file cannot be written.
        """
        with ExitStack() as stack:
            draft = self.begin(name, len(data), stack)
            if draft is None:
                return False
            with os.fdopen(draft.descriptor, "wb", closefd=False) as file:
                file.write(data)
            draft.publish()
            return True

    def begin(self, name: str, size_bytes: int, stack: ExitStack, *, resumes: bool = False) -> Draft | None:
        """Free space for an entry of *size_bytes* and begin to make it.

        Args:
            name: Name of the entry.
            size_bytes: Size that it will have.
            stack: Holds the lease of the draft; when it closes, an unfinished entry goes, unless it *resumes*.
            resumes: Whether to continue a draft that another process began, once that process has ended; abandoned
                drafts are removed like entries.

        Returns:
            None if there is no space, if the entry exists already, or if another process is making it.

        Raises:
            OSError: the folder cannot be written.
        """
        path = self.unfinished(name, size_bytes)
        while True:
            with self.alone():
                if self.has(name):
                    return None
                if (resumes and path.exists()) or self._remove_unused(path):
                    with ExitStack() as making:
                        descriptor = _open_draft(path, making, resumes=resumes)
                        if descriptor is not None:
                            if not self._make_room(size_bytes, besides=path):
                                return None
                            stack.enter_context(making.pop_all())
                            return Draft(cache=self, name=name, path=path, descriptor=descriptor)
            if not resumes:
                return None
            _wait_for_lock(path)

    def unfinished(self, name: str, size_bytes: int) -> Path:
        """Return the path of the entry *name* of *size_bytes* while it is being made."""
        return self.folder / f"unfinished-{size_bytes}-{name}"

    def has(self, name: str) -> bool:
        """Return whether there is an entry *name*."""
        return (self.folder / name).exists()

    def discard(self, name: str) -> None:
        """Remove a damaged entry.

        Raises:
            OSError: the folder cannot be written.
        """
        with self.alone():
            (self.folder / name).unlink(missing_ok=True)

    def find_unreferenced(self, is_referenced: Callable[[str], bool]) -> Iterator[Path]:
        """Yield the entries whose names are not referenced, and the drafts of killed processes."""
        for found in sorted(self._find()):
            if not found.is_unfinished:
                is_needed = is_referenced(found.path.name)
            else:
                with _held_if_unused(found.path) as is_abandoned:
                    is_needed = not is_abandoned
            if not is_needed:
                yield found.path

    @contextmanager
    def naming_faults(self, doing: str, size_bytes: int) -> Iterator[None]:
        """Turn an error of the file system into one that names the folder and the remedy."""
        try:
            yield
        except OSError as error:
            raise StreamError(
                f"{self.folder}: {error.strerror} while {doing}; expected a folder with {size_bytes} free bytes: "
                f"{advice(error)}, or {self.remedy}"
            ) from error

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Hold the lock of the folder: entries get and lose their names only under it.

        Raises:
            OSError: the lock cannot be opened.
        """
        if not self.folder.is_dir():
            make_cache_folder(self.folder)
        with ExitStack() as stack:
            try:
                stack.enter_context(locked(self.folder / "lock"))
            except OSError as error:
                if error.errno not in _NO_LOCKS:
                    raise
            yield

    def _make_room(self, size_bytes: int, *, besides: Path) -> bool:
        """Remove the entries that were used longest ago until *size_bytes* fit *besides*; return whether they fit.

        Entries in use stay. The drafts of killed processes are removed, unless they can be continued. On a full disk,
        less space is available than the limit. The caller holds the lock.
        """
        total_bytes, entries = size_bytes, []
        for found in self._find():
            if found.path == besides:
                continue
            if found.is_unfinished and found.path.suffix != RESUMED and self._remove_unused(found.path):
                continue
            total_bytes += found.size_bytes
            entries.append(found)
        room_bytes = self._room_bytes(sum(entry.size_bytes for entry in entries))
        if size_bytes > room_bytes:
            return False
        for entry in sorted(entries, key=lambda entry: entry.used_ns):
            if total_bytes <= room_bytes:
                break
            if self._remove_unused(entry.path):
                total_bytes -= entry.size_bytes
        return total_bytes <= room_bytes

    def _room_bytes(self, present_bytes: int) -> int:
        """Return the size that all entries may have: the limit, or less on a disk that is nearly full."""
        usage = shutil.disk_usage(self.folder)
        if not usage.total:  # a file system that does not report its size
            return self.limit_bytes
        return min(self.limit_bytes, present_bytes + usage.free * 9 // 10)

    def _find(self) -> Iterator[_Found]:
        """Yield the entries and drafts; another process may remove a file at any moment."""
        if not self.folder.is_dir():
            return
        for path in self.folder.iterdir():
            unfinished = _UNFINISHED.fullmatch(path.name)
            if not path.is_file() or not (unfinished or _NAME.fullmatch(path.name)):
                continue
            with suppress(FileNotFoundError):
                facts = path.stat()
                size_bytes = int(unfinished[1]) if unfinished else facts.st_size
                yield _Found(path, facts.st_mtime_ns, size_bytes, unfinished is not None)

    def _remove_unused(self, path: Path) -> bool:
        """Remove *path* unless a process reads or makes it; return whether it is gone. The caller holds the lock."""
        if not path.exists():
            return True
        with _held_if_unused(path) as is_held:
            if is_held:
                path.unlink(missing_ok=True)
        return is_held


def _open_draft(path: Path, stack: ExitStack, *, resumes: bool) -> int | None:
    """Make the file *path* and return its descriptor, locked; None if another process has it.

    When *stack* closes, an unfinished one goes, unless it *resumes*.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    stack.callback(os.close, descriptor)
    is_ours = _try_lock(descriptor, is_free_without=not os.fstat(descriptor).st_size)
    if not is_ours or not is_still(path, descriptor):  # the other process may have removed it just now
        return None
    stack.callback(_remove_draft, path, descriptor, keeps_begun=resumes)
    return descriptor


def _lock(descriptor: int, how: int) -> None:
    """Lock an entry, if the file system can lock."""
    try:
        fcntl.flock(descriptor, how)
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise


@contextmanager
def _held_if_unused(path: Path) -> Iterator[bool]:
    """Hold the lock of *path* and yield True if no process reads or makes it; otherwise yield False.

    On file systems that cannot lock, finished files count as unused, since a process that has one open can read on.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        yield False
        return
    try:
        yield _try_lock(descriptor, is_free_without=_NAME.fullmatch(path.name) is not None)
    finally:
        os.close(descriptor)


def _try_lock(descriptor: int, *, is_free_without: bool) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno in _NO_LOCKS and is_free_without
    return True


def _wait_for_lock(path: Path) -> None:
    """Wait until no process is making *path*."""
    with suppress(FileNotFoundError):
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH)
        finally:
            os.close(descriptor)


def _remove_draft(path: Path, descriptor: int, *, keeps_begun: bool) -> None:
    """Remove a draft that has not been published; by now its name may belong to another process's draft."""
    if is_still(path, descriptor) and not (keeps_begun and os.fstat(descriptor).st_size):
        path.unlink(missing_ok=True)
