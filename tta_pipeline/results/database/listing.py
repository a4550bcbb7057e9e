"""The result files and plans that lie under a data root; a hundred thousand are listed in a fraction of a second."""

import hashlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from tta_pipeline.domain.locations import ADDED, RESULTS
from tta_pipeline.results.names import PLANS, RESULT_NAME, VOID_SUFFIX, plan_files, read_void

_MAX_DEPTH = 8
"""Largest depth of folders, as a guard against links that form a cycle."""


class ListedFile(NamedTuple):
    """A result file; its name says what it holds, so its size tells whether it is still that."""

    file: str
    """Path relative to the data root."""
    size_bytes: int
    void: str | None
    """Why it counts nowhere; None if it may count."""


@dataclass(frozen=True, kw_only=True)
class Listing:
    """All results and plans under a data root."""

    results: Mapping[str, ListedFile]
    """By path relative to the data root."""
    plans: Mapping[str, str]
    """sha256 of each plan, by path relative to the data root."""


def list_files(data_root: Path) -> Listing:
    """Return all results and plans under *data_root*: its own, and those that were added from others."""
    roots = [data_root / RESULTS, *sorted(data_root.glob(f"{ADDED}/*/{RESULTS}"))]
    found = {each.file: each for root in roots for each in _listed(data_root, str(root), _MAX_DEPTH)}
    plans = {
        str(path.relative_to(data_root)): hashlib.sha256(path.read_bytes()).hexdigest()
        for root in roots
        for path in plan_files(root)
    }
    return Listing(results=found, plans=plans)


def _listed(data_root: Path, folder: str, depth: int) -> Iterator[ListedFile]:
    sizes: dict[str, int] = {}
    voids: set[str] = set()
    inner: list[str] = []
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if RESULT_NAME.fullmatch(entry.name):
                    sizes[entry.name] = _size_of(entry)
                elif entry.name.endswith(VOID_SUFFIX):
                    voids.add(entry.name.removesuffix(VOID_SUFFIX))
                elif entry.name != PLANS and entry.name[0] != "." and entry.name.isprintable() and entry.is_dir():
                    inner.append(entry.name)
    except (FileNotFoundError, NotADirectoryError):
        return
    start = folder[len(str(data_root)) + 1 :]
    for name in sorted(sizes):
        void = read_void(Path(folder, name)) if voids and name.removesuffix(".json") in voids else None
        yield ListedFile(f"{start}/{name}", sizes[name], void.because if void else None)
    for name in sorted(inner) if depth else ():
        yield from _listed(data_root, f"{folder}/{name}", depth - 1)


def _size_of(entry: "os.DirEntry[str]") -> int:
    try:
        return entry.stat().st_size
    except OSError:  # removed meanwhile, or a dangling link: reading it says more
        return -1
