"""Files and folders that appear whole or not at all."""

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

from tta_pipeline.util.locks import locked_folder

_UNPUBLISHED = ".unpublished-"
_UNPUBLISHED_NAME = re.compile(rf"{re.escape(_UNPUBLISHED)}[0-9a-f]{{32}}-")
_ALIVE_EVERY_S = 30.0
_ABANDONED_AFTER_S = 600.0  # a living process touches its folder far more often, even where its lock is invisible here
_AT_FDCWD = -100
_FSYNCS_AT_ONCE = 8
SEAL_BYTES = 64
"""Bytes by which `seal` makes data longer."""
_RENAME_EXCHANGE = 2
_CACHE_TAG = b"""Signature: 8a477f597d28d172789f06886806bc55
# This folder was made by tta_pipeline. Its files can be made again and may be removed.
"""
_ADVICE = {
    errno.ENOSPC: "free space",
    errno.EDQUOT: "free space, or ask the administrator for a larger quota",
    errno.EFBIG: "free space, or raise the limit on file size (ulimit -f)",
    errno.EROFS: "choose another place, or mount this disk for writing",
    errno.EACCES: "choose a place that you may use, or change its permissions",
    errno.EPERM: "choose a place that you may use, or change its permissions",
    errno.ENAMETOOLONG: "use shorter names",
    errno.EMFILE: "raise the limit on open files (ulimit -n)",
    errno.ENOTDIR: "remove the file that should be a folder",
    errno.EIO: "check the disk, which may be failing",
    errno.ESTALE: "check the network and its disk",
}


def advice(error: Exception) -> str:
    """Return the remedy for *error*, raised by the file system or by a library that repeats its message."""
    code = error.errno if isinstance(error, OSError) else None
    if code is None:
        code = next((known for known in _ADVICE if os.strerror(known) in str(error)), None)
    return _ADVICE.get(code or 0, "check this place, its permissions and its free space")


def is_of_the_disk(error: Exception) -> bool:
    """Return whether *error* reports a full or read-only disk or a similar fault for which `advice` has a remedy."""
    return isinstance(error, OSError) and error.errno in _ADVICE


def read_if_sha256_matches(path: Path, sha256: str) -> bytes | None:
    """Return the content of the file *path* if it hashes to *sha256*, otherwise None.

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
    """Return the sha256 of the file *path*, read in blocks.

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


def write_atomically(path: Path, data: bytes) -> None:
    """Write *data* to *path* so that a reader sees either the old or the new content, even after a power cut."""
    with written_file(path) as beside:
        beside.write_bytes(data)


@contextlib.contextmanager
def written_file(path: Path) -> Iterator[Path]:
    """Yield a path next to *path* to write to; it replaces *path* when the block ends without an exception."""
    with _name_to_write(path) as beside:
        yield beside
        fsync_path(beside)
        beside.replace(path)


def write_once(path: Path, data: bytes) -> bool:
    """Write *data* to *path* unless *path* exists; return whether this call wrote it."""
    with _name_to_write(path) as beside:
        beside.write_bytes(data)
        fsync_path(beside)
        try:
            os.link(beside, path)
        except FileExistsError:
            # NFS may report this about its own new link if the first reply was lost: then the file has two links.
            return beside.stat().st_nlink > 1
    return True


@contextlib.contextmanager
def _name_to_write(path: Path) -> Iterator[Path]:
    """Yield a name next to *path*, removed after the block; the folder's other names then survive a power cut."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = _name_beside(path)
    try:
        yield beside
    finally:
        beside.unlink(missing_ok=True)
    fsync_path(path.parent)


def make_cache_folder(path: Path) -> None:
    """Make the cache folder *path* and mark it as a cache of ours: https://bford.info/cachedir.

    Raises:
        OSError: the folder cannot be made or written to.
    """
    path.mkdir(parents=True, exist_ok=True)
    write_once(path / "CACHEDIR.TAG", _CACHE_TAG)


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
def temporary_folder(target: Path) -> Iterator[Path]:
    """Yield an empty folder next to *target*, named after it; when the block ends, remove anything of that name.

    During the block the folder is locked and touched regularly, because a lock may hold on one host only. Both
    distinguish it from the leftovers of a killed process, which this removes too.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    remove_abandoned(target.parent)
    folder = _name_beside(target)
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


def remove_abandoned(parent: Path) -> tuple[Path, ...]:
    """Remove the unpublished folders in *parent* that no living process holds; return their paths."""
    candidates = [path for path in parent.iterdir() if is_unpublished(path.name) and path.is_dir()]
    return tuple(path for path in candidates if remove_if_abandoned(path))


def find_abandoned(root: Path) -> Iterator[Path]:
    """Yield the unpublished files and folders below *root* that no living process holds; no link is followed."""
    for folder, folders, files in os.walk(root):
        unpublished = [Path(folder, name) for name in (*folders, *files) if is_unpublished(name)]
        yield from filter(is_abandoned, unpublished)
        folders[:] = [name for name in folders if not is_unpublished(name)]


def is_unpublished(name: str) -> bool:
    """Return whether *name* marks a file or folder of ours that is not yet published."""
    return _UNPUBLISHED_NAME.match(name) is not None


def remove_if_abandoned(path: Path) -> bool:
    """Remove the unpublished *path* unless a living process holds it; return whether it was removed."""
    if not is_abandoned(path):
        return False
    # Rename it first: if its process is alive after all, it can never publish half a folder.
    aside = path.with_name(f"{_UNPUBLISHED}{uuid.uuid4().hex}-abandoned")
    with contextlib.suppress(FileNotFoundError):  # another process removed it first
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
    except OSError:  # gone, or another user's
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
        with contextlib.suppress(OSError):  # it has been published, or removed
            while not is_done.wait(_ALIVE_EVERY_S):
                os.utime(path)

    marking = threading.Thread(target=mark, name="tta_pipeline_alive", daemon=True)
    marking.start()
    try:
        yield
    finally:
        is_done.set()
        marking.join()


def _name_beside(path: Path) -> Path:
    return path.with_name(f"{_UNPUBLISHED}{uuid.uuid4().hex}-{path.name}")


def _fsync_tree(folder: Path) -> None:
    """Synchronise every file of *folder*, several at once: file systems write their journal once for all that wait."""
    with ThreadPoolExecutor(_FSYNCS_AT_ONCE, thread_name_prefix="tta-fsync") as threads:
        for parent, _, names in os.walk(folder, topdown=False):
            for _ in threads.map(fsync_path, [Path(parent, name) for name in names]):
                pass  # raises the error of a file
            fsync_path(Path(parent))


def _replace_target(beside: Path, target: Path) -> None:
    """Replace *target* by *beside*; the old target then has the name *beside* or is removed."""
    asides = []
    # Where locks hold on one host only, another process may publish its folder at any moment: the last one stays.
    while not _try_rename(beside, target) and not _swap_names(beside, target):
        # This file system cannot swap names; readers find nothing there until the next rename.
        asides.append(_name_beside(target))
        with contextlib.suppress(FileNotFoundError):  # another process has just done so
            target.rename(asides[-1])
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
    renameat2 = ctypes.CDLL(None).renameat2
    return bool(renameat2(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE) == 0)
