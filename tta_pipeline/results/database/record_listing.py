"""Listing of all records, each with a stamp that changes when its file does; a million take some seconds."""

import os
import time
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from tta_pipeline.results.records import KINDS_IN_DATABASE, record_file_name, record_number, result_folders

_MIN_AGE_S = 2.0
"""Age in seconds below which a file could change again without a new change time."""
_MAX_DEPTH = 8
"""Largest depth of folders under a kind, as a guard against links that form a cycle."""


class Stamp(NamedTuple):
    """File system metadata of a file; programs cannot set the change time of an inode."""

    size_bytes: int
    mtime_ns: int
    ctime_ns: int
    inode: int

    @property
    def trusted(self) -> "Stamp":
        """The stamp to store for a file that is read now; for a file that is too young, a stamp that no file has."""
        is_young = self.ctime_ns > time.time_ns() - int(_MIN_AGE_S * 1e9)
        return self._replace(ctime_ns=0) if is_young else self


class ListedRecord(NamedTuple):
    """One record in the listing."""

    folder: str
    """Folder of the record, relative to the data root."""
    sequence: int
    stamp: Stamp

    @property
    def path(self) -> str:
        """Path of the record's file, relative to the data root."""
        return f"{self.folder}/{record_file_name(self.sequence)}"


@dataclass(frozen=True, kw_only=True)
class RecordListing:
    """All records under a data root, in columns, in a deterministic order."""

    folders: list[str] = field(default_factory=list)
    _counts: array = field(default_factory=lambda: array("q"))  # type: ignore[type-arg] # array takes none at run time
    _numbers: array = field(default_factory=lambda: array("q"))  # type: ignore[type-arg]

    def __len__(self) -> int:
        return len(self._numbers) // 5

    def table(self) -> pa.Table:
        """Return folder, sequence, size_bytes, mtime_ns, ctime_ns and inode of each record."""
        numbers = np.frombuffer(self._numbers, np.int64).reshape(-1, 5) if len(self) else np.empty((0, 5), np.int64)
        of_folder = np.repeat(np.arange(len(self.folders), dtype=np.int32), np.array(self._counts, np.int64))
        folder = pa.DictionaryArray.from_arrays(pa.array(of_folder), pa.array(self.folders, pa.string()))
        names = ("sequence", *Stamp._fields)
        return pa.table({"folder": folder, **{name: numbers[:, at] for at, name in enumerate(names)}})

    def __iter__(self) -> Iterator[ListedRecord]:
        at = 0
        for folder, count in zip(self.folders, self._counts, strict=True):
            for _ in range(count):
                sequence, *stamp = self._numbers[at : at + 5]
                yield ListedRecord(folder, sequence, Stamp(*stamp))
                at += 5

    def add(self, folder: str, records: Sequence[tuple[int, ...]]) -> None:
        """Add the records of one folder, each a number and a stamp."""
        self.folders.append(folder)
        self._counts.append(len(records))
        for record in records:
            self._numbers.extend(record)


def list_records(data_root: Path, within: Path | None = None) -> RecordListing:
    """Return all records under *data_root*, grouped by kind; or only those in the folder *within*."""
    listing = RecordListing()
    if within is not None:
        _add_folder(listing, str(data_root), str(within.relative_to(data_root)), _MAX_DEPTH)
        return listing
    for kind in KINDS_IN_DATABASE:
        for results in result_folders(data_root, kind):
            _add_folder(listing, str(data_root), str(results.relative_to(data_root)), _MAX_DEPTH)
    return listing


def _add_folder(listing: RecordListing, root: str, folder: str, depth: int) -> None:
    records, inner = [], []
    try:
        with os.scandir(f"{root}/{folder}") as entries:
            for entry in entries:
                number = record_number(entry.name)
                if number:
                    status = _stat_entry(entry)
                    if status:
                        # The kernel's inode numbers are unsigned.
                        inode = status.st_ino & (2**63 - 1)
                        records.append((number, status.st_size, status.st_mtime_ns, status.st_ctime_ns, inode))
                elif not entry.name.startswith(".") and entry.is_dir():
                    inner.append(entry.name)
    except (FileNotFoundError, NotADirectoryError):
        return
    if records:
        # A name that is not valid text is escaped, so its records are not found and are set aside.
        listing.add(os.fsencode(folder).decode(errors="backslashreplace"), sorted(records))
    for name in sorted(inner) if depth else ():
        _add_folder(listing, root, f"{folder}/{name}", depth - 1)


def _stat_entry(entry: "os.DirEntry[str]") -> os.stat_result | None:
    try:
        return entry.stat()
    except FileNotFoundError:
        pass
    try:
        return entry.stat(follow_symlinks=False)  # a dangling link: reading it raises
    except FileNotFoundError:
        return None  # removed meanwhile
