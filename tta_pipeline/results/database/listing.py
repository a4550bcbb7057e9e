"""List the result files and plans under a data root, a hundred thousand in a fraction of a second."""

import hashlib
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from tta_pipeline.domain.locations import ADDED, RESULTS
from tta_pipeline.results.names import PLANS, RESULT_NAME, VOID_SUFFIX, plan_files, read_void

_MAX_DEPTH = 8
"""Largest depth of folders, as a guard against links that form a cycle."""


class ListedFile(NamedTuple):
    """A result file; its name identifies its content, so its size shows whether the content is still the same."""

    file: str
    """Path relative to the data root."""
    size_bytes: int
    void: str | None
    """Why it counts nowhere; None if it may count."""


@dataclass(frozen=True, kw_only=True)
class Listing:
    """All results and plans under a data root."""

    results: Mapping[str, int]
    """Size in bytes of each result file, by path relative to the data root, folder by folder and in order there."""
    voids: Mapping[str, str]
    """Why a result counts nowhere, by its path; those that may count are missing."""
    plans: Mapping[str, str]
    """sha256 of each plan, by path relative to the data root."""

    def listed(self, files: Iterable[str]) -> tuple[ListedFile, ...]:
        """Return *files*, a subset of `results`, with what was found for each."""
        return tuple(ListedFile(file, self.results[file], self.voids.get(file)) for file in files)


def list_files(data_root: Path) -> Listing:
    """Return all results and plans under *data_root*: its own, and those that were added from others."""
    roots = [data_root / RESULTS, *sorted(data_root.glob(f"{ADDED}/*/{RESULTS}"))]
    sizes: dict[str, int] = {}
    voids: dict[str, str] = {}
    for root in roots:
        _list_folder(data_root, str(root), _MAX_DEPTH, sizes, voids)
    plans = {
        str(path.relative_to(data_root)): hashlib.sha256(path.read_bytes()).hexdigest()
        for root in roots
        for path in plan_files(root)
    }
    return Listing(results=sizes, voids=voids, plans=plans)


def _list_folder(data_root: Path, folder: str, depth: int, sizes: dict[str, int], voids: dict[str, str]) -> None:
    """Add the results in *folder* and below to *sizes* and *voids*."""
    found: dict[str, int] = {}
    notes: set[str] = set()
    inner: list[str] = []
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                name = entry.name
                if RESULT_NAME.fullmatch(name):
                    found[name] = _size_of(entry)
                elif name.endswith(VOID_SUFFIX):
                    notes.add(f"{name.removesuffix(VOID_SUFFIX)}.json")
                elif name != PLANS and name[0] != "." and name.isprintable() and entry.is_dir():
                    inner.append(name)
    except (FileNotFoundError, NotADirectoryError):
        return
    start = f"{folder[len(str(data_root)) + 1 :]}/"
    sizes.update((start + name, found[name]) for name in sorted(found))
    for name in notes & found.keys():
        if void := read_void(Path(folder, name)):
            voids[start + name] = void.because
    for name in sorted(inner) if depth else ():
        _list_folder(data_root, f"{folder}/{name}", depth - 1, sizes, voids)


def _size_of(entry: "os.DirEntry[str]") -> int:
    try:
        return entry.stat().st_size
    except OSError:  # removed meanwhile, or a dangling link: reading it raises a better error
        return -1
