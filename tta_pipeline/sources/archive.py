"""Images in tar archives as they are downloaded: one pass over an archive feeds all its cells, nothing is unpacked.

corruptions   <...>/<corruption>/<severity>/<class>/<name>, as ImageNet-C and Tiny-ImageNet-C
classes       <class>/<name>, one set
nested        an archive of per-class archives, <class>.tar, as ILSVRC2012_img_train.tar
flat          <name> alone, with the classes given, as ILSVRC2012_img_val.tar
"""

import hashlib
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any, Literal

from tta_pipeline.errors import SourceError
from tta_pipeline.files import write_atomically
from tta_pipeline.partitions import Cell
from tta_pipeline.sources.folder_tree import IMAGE_SUFFIXES, WRAPPERS
from tta_pipeline.sources.listing import Listing
from tta_pipeline.sources.spill import SpillFolder, offered, prepared_listing, spill_folder
from tta_pipeline.sources.tar_stream import Entry, entries, opened

_INDEX_FILE = "archive_index.json"


@dataclass
class _Found:
    """What one pass meets in one cell beside images."""

    num_hidden: int = 0
    strays: list[Path] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class ArchiveSource:
    """A source of one or more tar or tar.gz archives; a cell lies in one of them."""

    archives: tuple[Path, ...]
    cells: tuple[Cell, ...]
    spill_root: Path
    """Where the images of prepared cells lie, a file for each cell, for as long as they are needed."""
    expected_md5: Mapping[str, str] = field(default_factory=dict)
    """By the archives' names."""
    layout: Literal["corruptions", "classes", "nested", "flat"] = "corruptions"
    classes_by_file: Mapping[str, str] = field(default_factory=dict)
    """Class of each file of a flat archive."""
    known_corruptions: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """What published archives hold, by their names; of others it is found by reading them once before."""
    _listings: dict[Cell, Listing] = field(default_factory=dict, init=False, repr=False, compare=False)

    def class_names(self) -> tuple[str, ...]:
        """Return the sorted union of the classes in all archives."""
        if len(self.archives) == 1 and self._listings:
            return tuple(sorted({image.class_name for found in self._listings.values() for image in found.images}))
        return tuple(sorted({name for path in self.archives for name in self._index(path)["classes"]}))

    def cells_found(self) -> tuple[Cell, ...]:
        """Return those of the cells that the archives have."""
        if len(self.archives) == 1 and self._listings:
            return tuple(cell for cell in self.cells if cell in self._listings)
        found = {key for path in self.archives for key in self._index(path)["cells"]}
        return tuple(cell for cell in self.cells if cell.key in found)

    def together(self, cell: Cell, among: Sequence[Cell]) -> tuple[Cell, ...]:
        """Return those *among* the cells that lie in the archive of *cell*."""
        path = self._archive_of(cell)
        return tuple(other for other in among if self._has(path, other))

    def version(self, cell: Cell) -> str:
        """Return a digest of name, size and time of change of the archives, the same for every cell."""
        stamps = [_stamp(path) for path in self.archives]
        decisive = [stamps, self.layout, cell.key, sorted(self.classes_by_file.items())]
        return hashlib.sha256(json.dumps(decisive).encode()).hexdigest()

    @contextmanager
    def prepared(self, cells: Sequence[Cell]) -> Iterator[None]:
        """Copy the images of *cells* from their archives into a temporary file for each cell, one pass an archive.

        Raises:
            SourceError: an archive is damaged or has another md5 than expected.
        """
        missing = [cell for cell in cells if cell not in self._listings]
        if not missing:
            yield
            return
        with spill_folder(self.spill_root) as spill:
            listings: dict[Cell, Listing] = {}
            for path in self.archives:
                here = [cell for cell in missing if self._has(path, cell)]
                listings |= self._pass(path, here, spill) if here else {}
            with offered(listings, to=self._listings):
                yield

    def listing(self, cell: Cell) -> Listing:
        """Return the images of *cell*, sorted by name.

        Raises:
            SourceError: *cell* is not prepared, or the archives have no image of it.
        """
        if self._listings and cell not in self._listings:
            raise self._nothing(cell)
        return prepared_listing(self._listings, cell, root=self.archives[0].parent)

    def _pass(self, path: Path, cells: Sequence[Cell], spill: SpillFolder) -> dict[Cell, Listing]:
        wanted, found = set(cells), {cell: _Found() for cell in cells}
        names: set[str] = set()
        links: list[Entry] = []
        with opened(path, expected_md5=self.expected_md5.get(path.name)) as file:
            for entry in self._entries(file, path):
                place = self._place(entry.name, path)
                if place is None or place[0] not in wanted:
                    continue
                if entry.name in names:
                    raise SourceError(f"{path}: {entry.name} stands twice; expected each name once: take one out")
                names.add(entry.name)
                if _is_hidden(entry.name):
                    found[place[0]].num_hidden += 1
                elif not entry.name.lower().endswith(IMAGE_SUFFIXES) or not place[1]:
                    found[place[0]].strays.append(path / entry.name)
                elif entry.link:
                    links.append(entry)
                else:
                    spill.file(place[0]).append(place[1], entry.name.rpartition("/")[2], entry.data)
        self._resolve(path, links, spill)
        listings = {cell: self._listed(cell, path, spill, found[cell]) for cell in cells}
        return {cell: listing for cell, listing in listings.items() if listing.images}

    def _entries(self, file: Any, path: Path) -> Iterator[Entry]:
        if self.layout != "nested":
            yield from entries(file, str(path))
            return
        for outer in entries(file, str(path)):
            class_name = PurePosixPath(outer.name).stem
            for inner in entries(io.BytesIO(outer.data), f"{path}/{outer.name}"):
                yield inner._replace(name=f"{class_name}/{inner.name.rpartition('/')[2]}")

    def _place(self, name: str, path: Path) -> tuple[Cell, str] | None:
        """Return cell and class of the member *name*, the class empty if it has none; None if it is of no cell."""
        parts = name.split("/")
        folders = [part for part in parts[:-1] if part not in WRAPPERS]
        if self.layout == "flat":
            return self.cells[0], self._given_class(parts[-1], path)
        if self.layout != "corruptions":
            return self.cells[0], folders[-1] if folders else ""
        for position in range(len(folders) - 1):
            cell = self._cells_by_parts.get((folders[position], folders[position + 1]))
            if cell is not None:
                return cell, folders[-1] if len(folders) > position + 2 else ""
        return None

    @cached_property
    def _cells_by_parts(self) -> dict[tuple[str, str], Cell]:
        return {(cell.corruption, str(cell.severity)): cell for cell in self.cells}

    def _given_class(self, file_name: str, path: Path) -> str:
        if file_name not in self.classes_by_file:
            raise SourceError(
                f"{path}: {file_name} has no class; expected one of the {len(self.classes_by_file)} files of the "
                "ground truth: use the list that belongs to this archive"
            )
        return self.classes_by_file[file_name]

    def _resolve(self, path: Path, links: Sequence[Entry], spill: SpillFolder) -> None:
        """Copy what *links* lead to, which may lie before or behind them or in no cell, in a pass of its own."""
        if not links:
            return
        targets = {entry.link for entry in links}
        with opened(path) as file:
            data = {entry.name: entry.data for entry in self._entries(file, path) if entry.name in targets}
        for entry in links:
            place = self._place(entry.name, path)
            if not data.get(entry.link) or place is None:
                raise SourceError(
                    f"{path}: {entry.name} links to {entry.link}; expected a file of this archive: take the link out"
                )
            spill.file(place[0]).append(place[1], entry.name.rpartition("/")[2], data[entry.link])

    def _listed(self, cell: Cell, path: Path, spill: SpillFolder, found: _Found) -> Listing:
        return Listing(
            cell=cell,
            root=path,
            images=spill.file(cell).images(),
            num_hidden=found.num_hidden,
            strays=tuple(found.strays),
        )

    def _nothing(self, cell: Cell) -> SourceError:
        names = ", ".join(map(str, self.archives))
        return SourceError(f"0 images of {cell.key} in {names}; expected <corruption>/<severity>/<class>/<name>: name "
                           "the archive that has them")  # fmt: skip

    def _archive_of(self, cell: Cell) -> Path:
        having = [path for path in self.archives if self._has(path, cell)]
        if not having:
            raise self._nothing(cell)
        if len(having) > 1:
            raise SourceError(f"{cell.key} is in {having[0]} and in {having[1]}; expected each cell in one archive")
        return having[0]

    def _has(self, path: Path, cell: Cell) -> bool:
        if len(self.archives) == 1:
            return True
        if path.name in self.known_corruptions:
            return cell.corruption in self.known_corruptions[path.name]
        return cell.key in self._index(path)["cells"]

    def _index(self, path: Path) -> Mapping[str, Sequence[str]]:
        """Return which cells and classes an archive has; found by reading it once and kept beside the spill files."""
        index_path = self.spill_root / _INDEX_FILE
        key = json.dumps([_stamp(path), self.layout, sorted(cell.key for cell in self.cells)])
        try:
            known = dict(json.loads(index_path.read_bytes()))
        except (OSError, ValueError):
            known = {}
        if key not in known:
            known[key] = self._read_index(path)
            write_atomically(index_path, json.dumps(known, indent=1).encode())
        index: Mapping[str, Sequence[str]] = known[key]
        return index

    def _read_index(self, path: Path) -> dict[str, list[str]]:
        cells, classes = set(), set()
        with opened(path) as file:
            for entry in self._entries(file, path):
                place = self._place(entry.name, path)
                if place and place[1] and not _is_hidden(entry.name) and entry.name.lower().endswith(IMAGE_SUFFIXES):
                    cells.add(place[0].key)
                    classes.add(place[1])
        return {"cells": sorted(cells), "classes": sorted(classes)}


def _is_hidden(name: str) -> bool:
    return name.rpartition("/")[2].startswith(".")


def _stamp(path: Path) -> list[str | int]:
    try:
        status = path.stat()
    except OSError as error:
        raise SourceError(f"{path} cannot be read ({error.strerror}); expected a tar or tar.gz archive") from error
    return [path.name, status.st_size, status.st_mtime_ns]
