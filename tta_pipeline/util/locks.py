"""Locks that end with their process: the kernel releases them, however it ends.

The library `filelock` does less: it has no shared locks, cannot use another user's lock file, polls, and leaves a file
next to every folder that it ever locked.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import BinaryIO


def open_lock(path: Path) -> BinaryIO:
    """Open the lock file *path*; create it, and folders above it, if missing.

    A user with read permission only can lock it too, except on some network file systems.

    Raises:
        OSError: the file cannot be created or opened.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    except PermissionError:  # a file of another user
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    return os.fdopen(descriptor, "rb")


def try_flock(file: BinaryIO, how: int) -> bool:
    """Lock *file*, shared or exclusively according to *how*; return False if another process has it.

    Raises:
        OSError: the file system cannot lock.
    """
    try:
        fcntl.flock(file, how)
    except BlockingIOError:
        return False
    return True


@contextmanager
def locked(path: Path, *, waits: bool = True, is_kept: bool = True) -> Iterator[bool]:
    """Hold the exclusive lock *path*; yield whether it was acquired.

    Args:
        path: The lock file.
        waits: Whether to wait while another process has it.
        is_kept: Whether the file stays, so that hosts which see changes late lock the same file, or is removed.

    Raises:
        OSError: the lock cannot be opened.
    """
    while True:
        try:
            opened = open_lock(path)
        except FileNotFoundError:
            continue  # another host has just removed the file that this host still caches
        with opened as file:
            if not try_flock(file, fcntl.LOCK_EX | (0 if waits else fcntl.LOCK_NB)):
                yield False
                return
            # The previous holder has removed its lock file; a third process would lock a new file of the same name.
            if not is_kept and not is_still(path, file.fileno()):
                continue
            try:
                yield True
            finally:
                if not is_kept:
                    path.unlink(missing_ok=True)  # if locks hold on one host only, another host may have removed it
                fcntl.flock(file, fcntl.LOCK_UN)  # after a mere close, a child forked meanwhile would still hold it
            return


def locked_folder(folder: Path) -> AbstractContextManager[bool]:
    """Hold the right to replace *folder* or put files into it; the lock file is removed afterwards.

    Raises:
        OSError: the lock cannot be opened.
    """
    return locked(folder.with_name(f".{folder.name}.lock"), is_kept=False)


def is_still(path: Path, descriptor: int) -> bool:
    """Return whether *path* is the file or folder that *descriptor* has open, and not another one of the same name."""
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False
