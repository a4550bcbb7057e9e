"""Files and folders that appear whole or not at all, and locks that end with their process."""

import contextlib
import ctypes
import errno
import fcntl
import hashlib
import os
import re
import shutil
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import BinaryIO

_UNPUBLISHED = ".unpublished-"
_UNPUBLISHED_NAME = re.compile(rf"{re.escape(_UNPUBLISHED)}[0-9a-f]{{32}}-")
_ALIVE_EVERY_S = 30.0
_ABANDONED_AFTER_S = 600.0  # a living process touches its folder far more often, even where its lock is invisible here
_NOTES = "unpublished"
_AT_FDCWD = -100
_FSYNCS_AT_ONCE = 8
SEAL_BYTES = 64
"""Bytes by which `seal` makes data longer."""
_RENAME_EXCHANGE = 2
_SYNC_FILE_RANGE_WRITE = 2
_CACHE_TAG = b"""Signature: 8a477f597d28d172789f06886806bc55
# This folder was made by tta_pipeline. Its files can be made again and may be removed.
"""
_ADVICE = {
    errno.ENOSPC: "make room",
    errno.EDQUOT: "make room, or ask for a larger quota",
    errno.EFBIG: "make room, or raise the limit on file size (ulimit -f)",
    errno.EROFS: "choose another place, or mount this disk for writing",
    errno.EACCES: "choose a place that you may use, or change its permissions",
    errno.EPERM: "choose a place that you may use, or change its permissions",
    errno.ENAMETOOLONG: "use shorter names",
    errno.EMFILE: "raise the limit on open files (ulimit -n)",
    errno.ENOTDIR: "remove the file that is where a folder should be",
    errno.EIO: "check the disk, which may be failing",
    errno.ESTALE: "check the network and its disk",
}


def advice(error: Exception) -> str:
    """Return what to do about *error*, raised by the file system or by a library that repeats its message."""
    code = error.errno if isinstance(error, OSError) else None
    if code is None:
        code = next((known for known in _ADVICE if os.strerror(known) in str(error)), None)
    return _ADVICE.get(code or 0, "check this place, its permissions and its free space")


def is_of_the_disk(error: Exception) -> bool:
    """Return whether *error* says that a disk is full or read-only, or the like, for which `advice` knows a remedy."""
    return isinstance(error, OSError) and error.errno in _ADVICE


def read_if_sha256_matches(path: Path, sha256: str) -> bytes | None:
    """Return the content of the file *path* if it hashes to *sha256*, else None.

    Raises:
        OSError: *path* cannot be read.
    """
    data = path.read_bytes()
    return data if hashlib.sha256(data).hexdigest() == sha256 else None


def read_sealed(path: Path, bound_to: str) -> bytes | None:
    """Return the data that `seal` wrapped in *path*; None if the file has changed or is bound to other text.

    Raises:
        OSError: *path* cannot be read.
    """
    with path.open("rb") as file:
        stated, data = file.read(SEAL_BYTES), file.read()
    return data if _seal_of(data, bound_to) == stated else None


def seal(data: bytes, bound_to: str) -> bytes:
    """Return *data* with the hex sha256 of *bound_to* and *data* in front."""
    return _seal_of(data, bound_to) + data


def unseal(sealed: bytes, bound_to: str) -> bytes | None:
    """Return the data that `seal` wrapped; None if it has changed or is bound to other text."""
    data = sealed[SEAL_BYTES:]
    return data if _seal_of(data, bound_to) == sealed[:SEAL_BYTES] else None


def _seal_of(data: bytes, bound_to: str) -> bytes:
    digest = hashlib.sha256(bound_to.encode())
    digest.update(data)
    return digest.hexdigest().encode()


def hash_file(path: Path) -> str:
    """Return the sha256 of the file *path*, read in pieces.

    Raises:
        OSError: *path* cannot be read.
    """
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def fsync_path(path: Path) -> None:
    """Make *path*, a file or a folder's directory entries, survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def start_writing_back(descriptor: int) -> None:
    """Let the kernel start writing the data of *descriptor* to disk, so that a later fsync waits less.

    This is only a hint: some file systems ignore it, and only fsync reports errors.
    """
    libc = ctypes.CDLL(None)
    if hasattr(libc, "sync_file_range"):
        libc.sync_file_range(descriptor, ctypes.c_int64(0), ctypes.c_int64(0), _SYNC_FILE_RANGE_WRITE)


def write_atomically(path: Path, data: bytes) -> None:
    """Write *data* to *path* so that a reader sees either the old or the new content, even after a power cut."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = _name_beside(path)
    try:
        _write_synced(beside, data)
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)
    fsync_path(path.parent)


@contextlib.contextmanager
def written_file(path: Path) -> Iterator[Path]:
    """Yield a path beside *path* to write to; it replaces *path* when the block ends without an exception."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = _name_beside(path)
    try:
        yield beside
        fsync_path(beside)
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)
    fsync_path(path.parent)


def write_once(path: Path, data: bytes) -> bool:
    """Write *data* to *path* unless *path* exists; return whether this call wrote it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = _name_beside(path)
    try:
        _write_synced(beside, data)
        os.link(beside, path)
    except FileExistsError:
        # NFS may report this about its own new link if the first answer was lost: then the file has two links.
        if beside.stat().st_nlink == 1:
            return False
    finally:
        beside.unlink(missing_ok=True)
    fsync_path(path.parent)
    return True


def make_cache_folder(path: Path) -> None:
    """Make the cache folder *path* and mark it as a cache of ours: https://bford.info/cachedir.

    Raises:
        OSError: the folder cannot be made or written to.
    """
    path.mkdir(parents=True, exist_ok=True)
    write_once(path / "CACHEDIR.TAG", _CACHE_TAG)


def open_lock(path: Path) -> BinaryIO:
    """Open the lock file *path*; create it if it is missing.

    A user with read permission only can lock it too, except on some network file systems.

    Raises:
        OSError: the file cannot be created or opened.
    """
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    except PermissionError:  # a file of another user
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    return os.fdopen(descriptor, "rb")


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the exclusive lock *path*; the kernel releases it when this process ends, however it ends.

    Raises:
        OSError: the lock cannot be opened.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with open_lock(path) as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(file, fcntl.LOCK_UN)  # after a mere close, a child forked meanwhile would still hold the lock


@contextlib.contextmanager
def try_locked(path: Path, *, waits: bool = False) -> Iterator[bool]:
    """Hold the exclusive lock *path*, whose file is then removed; yield False if another process has it.

    Args:
        path: The lock file.
        waits: Whether to wait until the other process is done.

    Raises:
        OSError: the lock cannot be opened.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with open_lock(path) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | (0 if waits else fcntl.LOCK_NB))
        except BlockingIOError:
            yield False
            return
        try:
            yield True
        finally:
            path.unlink(missing_ok=True)
            fcntl.flock(file, fcntl.LOCK_UN)  # after a mere close, a child forked meanwhile would still hold the lock


@contextlib.contextmanager
def published_folder(target: Path) -> Iterator[Path]:
    """Yield an empty folder that replaces *target* as a whole when the block ends without an exception.

    In any other case, a cancelled run included, *target* stays as it was. The next call for the same parent removes
    the leftovers of a killed process.
    """
    with temporary_folder(target) as beside:
        yield beside
        _fsync_tree(beside)
        with locked_folder(target):
            _replace_target(beside, target)
        fsync_path(target.parent)


@contextlib.contextmanager
def locked_folder(folder: Path) -> Iterator[None]:
    """Hold the right to replace *folder* or put files into it; the lock file is removed afterwards.

    Raises:
        OSError: the lock cannot be opened.
    """
    path = folder.with_name(f".{folder.name}.lock")
    while True:
        try:
            opened = open_lock(path)
        except FileNotFoundError:
            if not path.parent.is_dir():
                raise
            continue  # another host has just removed the file that this one still remembers
        with opened as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            # The previous holder has unlinked its lock file; a third process would lock a new file of the same name.
            if not is_still(path, file.fileno()):
                continue
            try:
                yield
            finally:
                path.unlink(missing_ok=True)  # where locks hold on one host only, another host may have removed it
            return


@contextlib.contextmanager
def temporary_folder(target: Path) -> Iterator[Path]:
    """Yield an empty folder beside *target*, named after it; when the block ends, remove anything of that name.

    During the block the folder is locked and touched regularly, because a lock may hold on one host only. Both
    distinguish it from the leftovers of a killed process, which this removes too.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    remove_abandoned(target.parent)
    folder = _name_beside(target)
    note = _write_note(folder)
    folder.mkdir()
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        # NFS cannot lock folders: there no folder ever counts as abandoned, and `doctor` lists the leftovers.
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        with _marked_alive(folder):
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(descriptor)
        if note and not folder.exists():
            note.unlink(missing_ok=True)


@contextlib.contextmanager
def scratch_folder(name: str) -> Iterator[Path]:
    """Yield an empty folder for *name* on node-local disk, with the clean-up of `temporary_folder`."""
    with temporary_folder(node_local_folder() / name) as folder:
        yield folder


def node_local_folder() -> Path:
    """Return a folder of this user in `$TMPDIR`, created if necessary."""
    folder = Path(tempfile.gettempdir()) / f"tta_pipeline-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder


def find_noted_folders() -> Iterator[Path]:
    """Yield each unpublished folder that a process of this user began on this machine and that still exists.

    Only these notes lead to a leftover whose target nobody publishes again. Notes of vanished folders are removed.
    """
    with contextlib.suppress(OSError):
        for note in sorted((node_local_folder() / _NOTES).glob("[0-9a-f]*")):
            folder = Path(os.fsdecode(note.read_bytes()))
            if is_unpublished(folder.name) and folder.is_dir():
                yield folder
            elif time.time() - note.stat().st_mtime > _ABANDONED_AFTER_S:  # a newer one's folder may be about to appear
                note.unlink(missing_ok=True)


def _write_note(folder: Path) -> Path | None:
    """Write a note that *folder* is about to be made, and return its path; None if notes cannot be written here."""
    with contextlib.suppress(OSError):
        notes = node_local_folder() / _NOTES
        notes.mkdir(exist_ok=True)
        note = notes / uuid.uuid4().hex
        note.write_bytes(os.fsencode(folder.absolute()))
        return note
    return None


def remove_abandoned(parent: Path) -> tuple[Path, ...]:
    """Remove the unpublished folders in *parent* that no living process holds; return their paths."""
    candidates = [path for path in parent.iterdir() if is_unpublished(path.name) and path.is_dir()]
    return tuple(path for path in candidates if remove_if_abandoned(path))


def is_unpublished(name: str) -> bool:
    """Return whether *name* marks a file or folder of ours that is not yet published."""
    return _UNPUBLISHED_NAME.match(name) is not None


def remove_if_abandoned(path: Path) -> bool:
    """Remove the unpublished *path* unless a living process holds it; return whether it was removed."""
    if not is_abandoned(path):
        return False
    # Rename it first: if its process is alive after all, it can never publish half a folder.
    aside = path.with_name(f"{_UNPUBLISHED}{uuid.uuid4().hex}-abandoned")
    with contextlib.suppress(FileNotFoundError):  # another process was first
        path.rename(aside)
        if aside.is_dir():
            shutil.rmtree(aside, ignore_errors=True)
        else:
            aside.unlink()
    return True


def is_abandoned(path: Path) -> bool:
    """Return whether no living process holds the unpublished *path*, on this machine or another.

    The process of a folder locks it and touches it regularly; a file is written without a pause.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:  # gone, or somebody else's
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return time.time() - os.fstat(descriptor).st_mtime > _ABANDONED_AFTER_S
    except OSError:
        return False
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _marked_alive(path: Path) -> Iterator[None]:
    """Touch *path* every 30 seconds until the block ends."""
    is_done = threading.Event()

    def mark() -> None:
        while not is_done.wait(_ALIVE_EVERY_S):
            try:
                os.utime(path)
            except OSError:  # it has been published, or removed
                return

    marking = threading.Thread(target=mark, name="tta_pipeline_alive", daemon=True)
    marking.start()
    try:
        yield
    finally:
        is_done.set()
        marking.join()


def is_still(path: Path, descriptor: int) -> bool:
    """Return whether *path* is the file or folder that *descriptor* has open, and not another one of the same name."""
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _name_beside(path: Path) -> Path:
    return path.with_name(f"{_UNPUBLISHED}{uuid.uuid4().hex}-{path.name}")


def _write_synced(path: Path, data: bytes) -> None:
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _fsync_tree(folder: Path) -> None:
    """Synchronise every file of *folder*, several at once: file systems write their journal once for all that wait."""
    with ThreadPoolExecutor(_FSYNCS_AT_ONCE, thread_name_prefix="tta-fsync") as threads:
        for parent, _, names in os.walk(folder, topdown=False):
            for _ in threads.map(fsync_path, [Path(parent, name) for name in names]):
                pass  # raises the error of a file
            fsync_path(Path(parent))


def _replace_target(beside: Path, target: Path) -> None:
    """Put *beside* in the place of *target*; the old target then has the name *beside* or is removed."""
    asides = []
    # Where locks hold on one host only, another process may publish its folder at any moment: the last one stays.
    while not _try_rename(beside, target) and not _swap_names(beside, target):
        asides.append(_set_aside(target))
    for aside in asides:
        shutil.rmtree(aside, ignore_errors=True)


def _try_rename(beside: Path, target: Path) -> bool:
    """Rename *beside* to *target*; return False if *target* exists and is not an empty folder."""
    try:
        beside.rename(target)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
        return False
    return True


def _swap_names(one: Path, other: Path) -> bool:
    """Swap two names in one step, so that a reader always finds both; return whether the file system did so."""
    libc = ctypes.CDLL(None, use_errno=True)
    if not hasattr(libc, "renameat2"):
        return False
    return bool(libc.renameat2(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE) == 0)


def _set_aside(target: Path) -> Path:
    """Rename *target*, on a file system that cannot swap names; readers find nothing there until the next rename."""
    aside = _name_beside(target)
    with contextlib.suppress(FileNotFoundError):  # another process has just done so
        target.rename(aside)
    return aside
