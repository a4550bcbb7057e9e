"""Leases: a run gets a device to itself, or shares it with runs that allow sharing."""

import fcntl
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

import torch

from tta_pipeline.evaluation.device.devices import device_type, find_devices, identity_of, make_current
from tta_pipeline.util.locks import open_lock, try_flock

_POLL_INTERVAL_S = 0.5


@contextmanager
def leased_device(
    device: str, tell: Callable[[str], None], *, num_streams: int = 1, folder: Path | None = None
) -> Iterator[torch.device]:
    """Lease a device, make it the current device and yield it; no other run on this machine gets it until the end.

    Args:
        device: Device in the notation of `Machine`.
        tell: Called with a message if the call has to wait.
        num_streams: Number of runs that may share a device, if each of them allows it; 1: the device is not shared.
        folder: Folder of the locks, the same for all runs on this machine.

    Raises:
        EvaluationError: the device does not exist.
    """
    if device_type(device) == "cpu":
        yield torch.device("cpu")
        return
    identities = {identity_of(torch.device(name)): name for name in find_devices(device)}
    where = folder or Path(tempfile.gettempdir())
    with leased(tuple(identities), tell, num_slots=num_streams, folder=where) as identity:
        yield make_current(torch.device(identities[identity]))


@contextmanager
def leased(names: Sequence[str], tell: Callable[[str], None], *, num_slots: int = 1, folder: Path) -> Iterator[str]:
    """Lease one of *names* and yield it, once no other run on this machine uses it or it has a free slot.

    A lease is a file lock, which the kernel releases when its holder ends, even by a crash. A run that shares
    the name holds a shared lock on it and an exclusive lock on a slot; other runs hold an exclusive lock on the name.

    Args:
        names: Names to choose from; names with fewer holders come first.
        tell: Called with a message if the call has to wait.
        num_slots: Number of runs that may share a name, 1 or more.
        folder: Folder of the locks.

    Raises:
        OSError: a lock cannot be opened.
    """
    with ExitStack() as stack:
        slots = [
            (name, stack.enter_context(_open_lock_file(folder / f"tta_pipeline-{name}{suffix}.lock")))
            for suffix in ([""] if num_slots == 1 else [f".{number}" for number in range(num_slots)])
            for name in names
        ]
        whole = {} if num_slots == 1 else {
            name: stack.enter_context(_open_lock_file(folder / f"tta_pipeline-{name}.lock")) for name in names
        }  # fmt: skip
        name, is_told = _lock_free_slot(slots, whole), False
        while name is None:
            if not is_told:
                tell(f"waiting for one of {', '.join(names)}; each is used by another run")
                is_told = True
            time.sleep(_POLL_INTERVAL_S)
            name = _lock_free_slot(slots, whole)
        try:
            yield name
        finally:
            for file in (*(slot for _, slot in slots), *whole.values()):
                # After closing alone, a child forked meanwhile would still hold the lock.
                fcntl.flock(file, fcntl.LOCK_UN)


def _open_lock_file(path: Path) -> BinaryIO:
    """Open the file for locking, whichever user of the machine created it; a lock needs no right to write."""
    file = open_lock(path)
    with suppress(PermissionError):  # another user created it
        os.fchmod(file.fileno(), 0o444)  # whatever the umask
    return file


def _lock_free_slot(slots: Sequence[tuple[str, BinaryIO]], whole: Mapping[str, BinaryIO]) -> str | None:
    """Lock the first free slot, and share its file in *whole*, if any; return its name, or None if none is free."""
    for name, slot in slots:
        shared = whole.get(name)
        if shared and not try_flock(shared, fcntl.LOCK_SH | fcntl.LOCK_NB):
            continue
        if try_flock(slot, fcntl.LOCK_EX | fcntl.LOCK_NB):
            return name
        if shared:
            fcntl.flock(shared, fcntl.LOCK_UN)  # a run that wants the device alone must not wait for this one
    return None
