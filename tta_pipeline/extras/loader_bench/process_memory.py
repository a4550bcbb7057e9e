"""The memory of other processes, measured from outside."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Thread

_EVERY_S = 0.05
_COUNTED = ("Pss_Anon:", "Pss_Shmem:")


@dataclass(kw_only=True)
class MemoryUse:
    """Measured memory of processes, in MiB."""

    base_mib: float
    """Memory at the start of the block, in MiB."""
    peak_mib: float


@contextmanager
def watched(pids: Sequence[int]) -> Iterator[MemoryUse]:
    """Measure the memory of the processes *pids* and of all their children until the block ends.

    Anonymous and shared memory count. A page that several processes share counts proportionally in each (Linux's
    `smaps_rollup`). Pages of files, which the kernel may drop, do not count.
    """
    base_mib = _used_mib(pids)
    seen = MemoryUse(base_mib=base_mib, peak_mib=base_mib)
    is_over = Event()

    def watch() -> None:
        while not is_over.wait(_EVERY_S):
            seen.peak_mib = max(seen.peak_mib, _used_mib(pids))

    thread = Thread(target=watch, name="tta-memory")
    thread.start()
    try:
        yield seen
    finally:
        is_over.set()
        thread.join()


def _used_mib(pids: Sequence[int]) -> float:
    return sum(_used_kib(pid) for root in pids for pid in _process_tree(root)) / 1024


def _process_tree(pid: int) -> Iterator[int]:
    yield pid
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):  # it has ended
            for child in path.read_text().split():
                yield from _process_tree(int(child))


def _used_kib(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:  # it has ended
        return 0
    return sum(int(line.split()[1]) for line in lines if line.startswith(_COUNTED))
