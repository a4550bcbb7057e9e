"""Images in downloaded archives: one pass over a tar or zip finds the images of all its cells, without unpacking.

corruptions   <...>/<corruption>/<severity>/<class>/<name>, like ImageNet-C and Tiny-ImageNet-C
classes       <class>/<name>, one set
nested        an archive of per-class archives, <class>.tar, like ILSVRC2012_img_train.tar
flat          <name> alone, with classes from another file, like ILSVRC2012_img_val.tar
"""

import hashlib
import json
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from itertools import repeat
from pathlib import Path, PurePosixPath
from typing import Any, Literal, NamedTuple

from tta_pipeline.data.images.archive_entry import Entry, Members
from tta_pipeline.data.images.archives import opened_archive
from tta_pipeline.data.images.class_folders import (
    WRAPPERS,
    ClassNames,
    ClassRule,
    Folders,
    class_depth,
    find_only_parent,
    is_hidden,
    require_one_level,
    require_unambiguous,
)
from tta_pipeline.data.images.folder_tree import is_image
from tta_pipeline.data.images.listing import Listing
from tta_pipeline.data.images.shard_files import is_tar_like
from tta_pipeline.data.images.slices import Slices
from tta_pipeline.data.images.spill import SpillFolder, get_prepared, offered, spill_folder
from tta_pipeline.data.images.tar_stream import TarStream
from tta_pipeline.data.labels.class_map import label_order
from tta_pipeline.domain.cells import Cell
from tta_pipeline.errors import ImagesError
from tta_pipeline.util.files import write_atomically
from tta_pipeline.util.garbage_collection import gc_paused
from tta_pipeline.util.identifiers import require_unicode
from tta_pipeline.util.progress import Reporter, quiet_reporter

_INDEX_FILE = "archive_index.json"
_MAX_IMAGE_BYTES = 32 * 2**20
LayoutKind = Literal["corruptions", "classes", "nested", "flat"]


@dataclass(frozen=True, kw_only=True)
class ArchivedImages:
    """A source of one or more tar, tar.gz or zip archives; each cell is in one of them."""

    archives: tuple[Path, ...]
    cells: tuple[Cell, ...]
    spill_root: Path
    """Folder for the images of prepared cells of a compressed archive or a zip, one temporary file per cell."""
    expected_md5: Mapping[str, str] = field(default_factory=dict)
    """Expected md5 of each archive, by file name."""
    layout: LayoutKind = "corruptions"
    classes_by_file: Mapping[str, str] = field(default_factory=dict)
    """Class of each file by its name; needed for a flat archive."""
    classes_by_path: Mapping[str, str] = field(default_factory=dict)
    """Class of each file of a split by its path, see `ClassRule`; other files are left out."""
    class_pattern: str | None = None
    """Regular expression for `<folder>/<file>` whose first group is the class. None: the folder is the class."""
    known_corruptions: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Corruptions in each published archive, by file name; any other archive is read once beforehand to find them."""
    folders: Mapping[Cell, str] = field(default_factory=dict)
    """Folders of cells that are not in `<corruption>/<severity>`."""
    may_be_whole: bool = False
    """Whether all class folders may belong to the only cell, if its own folder is missing and they have one parent."""
    named: ClassNames = tuple
    """Returns the names in the class map, if there is one; a folder such as `train` is a class only if named there."""
    progress: Reporter = field(default=quiet_reporter, repr=False, compare=False)
    """Reports the MiB read from each archive."""
    _prepared: dict[Cell, "_CellImages"] = field(default_factory=dict, init=False, repr=False, compare=False)

    def class_names(self) -> tuple[str, ...]:
        """Return the union of the classes in all archives, or the classes of the list of files, in label order."""
        if self._layout.rule.classes_of_list:
            return label_order(self._layout.rule.classes_of_list)
        if self._is_wholly_prepared():
            return label_order({name for found in self._prepared.values() for name in found.images.class_names})
        return label_order({name for path in self.archives for name in self._index(path)["classes"]})

    def find_cells(self) -> tuple[Cell, ...]:
        """Return the source's cells that are in the archives."""
        if self._is_wholly_prepared():
            return tuple(cell for cell in self.cells if self._prepared[cell].images)
        found = {key for path in self.archives for key in self._index(path)["cells"]}
        return tuple(cell for cell in self.cells if cell.key in found)

    def together(self, cell: Cell, among: Sequence[Cell]) -> tuple[Cell, ...]:
        """Return the cells of *among* that are in the archive of *cell*."""
        having = self._archives_of(cell)
        if not having:
            raise self._nothing(cell)
        return tuple(other for other in among if self._has(having[0], other))

    def version(self, cell: Cell) -> str:
        """Return a digest of name, size and modification time of the archives, and of the settings of the listing.

        Expected md5 sums are part of the digest, so a sum that the user adds later is still compared.
        """
        stamps = [_stamp(path) for path in self.archives]
        sums = sorted(
            (path.name, self.expected_md5[path.name]) for path in self.archives if path.name in self.expected_md5
        )
        return _digest([stamps, cell.key, *self._class_settings, *([{"md5": sums}] if sums else [])])

    @contextmanager
    def prepared(self, cells: Sequence[Cell]) -> Iterator[None]:
        """Find the images of *cells* in one pass per archive, and copy the images of compressed archives on the way.

        Images in an uncompressed archive are read in place: a copy would be read a second time anyway.
        """
        missing = [cell for cell in cells if cell not in self._prepared]
        if not missing:
            yield
            return
        with spill_folder(self.spill_root) as spill, offered(self._find_images(missing, spill), to=self._prepared):
            yield

    def listing(self, cell: Cell) -> Listing:
        """Return the images of *cell*, sorted by name."""
        found = get_prepared(self._prepared, cell, where=self.archives[0].parent)
        if not found.images:
            raise self._nothing(cell)
        return Listing(
            cell=cell,
            root=found.path,
            images=found.images,
            num_hidden=found.num_hidden,
            strays=tuple(found.strays),
        )

    def _find_images(self, cells: Sequence[Cell], spill: SpillFolder) -> dict[Cell, "_CellImages"]:
        by_archive: dict[Path, list[Cell]] = {}
        for cell in cells:
            for path in self._archives_of(cell):
                by_archive.setdefault(path, []).append(cell)
        # A cell in no archive is prepared too, without images; `listing` then reports the missing images.
        found = {cell: _CellImages(self.archives[0]) for cell in cells}
        for path, here in by_archive.items():
            one_pass = _ArchivePass(path, here, layout=self._layout_of(path), spill=spill)
            found |= one_pass.run(expected_md5=self.expected_md5.get(path.name), progress=self.progress)
        return found

    @property
    def _class_settings(self) -> list[object]:
        folders = sorted((cell.key, folder) for cell, folder in self.folders.items())
        special = WRAPPERS.intersection(self.named())
        return [
            self.layout,
            self.class_pattern,
            sorted(self.classes_by_file.items()),
            *([{"split": sorted(self.classes_by_path.items())}] if self.classes_by_path else []),
            *([folders] if folders else []),
            *(["may be whole"] if self.may_be_whole else []),
            *([{"classes": sorted(special)}] if special else []),
        ]

    @cached_property
    def _layout(self) -> "_Layout":
        return _Layout(
            kind=self.layout,
            cells=self.cells,
            folders=self.folders,
            rule=ClassRule(
                classes_by_path=self.classes_by_path,
                classes_by_file=self.classes_by_file,
                pattern=self.class_pattern,
                named=cache(lambda: frozenset(self.named())),
                is_flat=self.layout == "flat",
            ),
        )

    def _layout_of(self, path: Path) -> "_Layout":
        is_whole = self.may_be_whole and not self._index(path)["own"]
        return replace(self._layout, takes_all=True) if is_whole else self._layout

    def _is_wholly_prepared(self) -> bool:
        return all(cell in self._prepared for cell in self.cells)

    def _nothing(self, cell: Cell) -> ImagesError:
        names = ", ".join(map(str, self.archives))
        return ImagesError(f"0 images of {cell.key} in {names}; expected <corruption>/<severity>/<class>/<name>: add "
                           "the archive with these images")  # fmt: skip

    def _archives_of(self, cell: Cell) -> list[Path]:
        """Return the one archive of *cell*, or an empty list."""
        having = [path for path in self.archives if self._has(path, cell)]
        if len(having) > 1:
            raise ImagesError(
                f"{cell.key} is in two archives, {having[0]} and {having[1]}; expected each cell in one archive: "
                "leave one of them out"
            )
        return having

    def _has(self, path: Path, cell: Cell) -> bool:
        if len(self.archives) == 1:
            return True
        if path.name in self.known_corruptions:
            return cell.corruption in self.known_corruptions[path.name]
        return cell.key in self._index(path)["cells"]

    def _index(self, path: Path) -> Mapping[str, Sequence[str]]:
        """Return the cells and classes of an archive; it is read once, and the index is stored under the spill root."""
        index_path = self.spill_root / _INDEX_FILE
        cells = sorted(cell.key for cell in self.cells)
        key = _digest([_stamp(path), cells, *self._class_settings])
        try:
            known = dict(json.loads(index_path.read_bytes()))
        except (OSError, ValueError, TypeError):
            known = {}
        # An edited index would shift labels, so an index contains its own hash.
        if key not in known or known[key] != _seal_index(key, known[key]):
            known[key] = _seal_index(key, self._build_index(path))
            write_atomically(index_path, json.dumps(known, indent=1).encode())
        index: Mapping[str, Sequence[str]] = known[key]
        return index

    def _build_index(self, path: Path) -> dict[str, list[str]]:
        index = self._layout.index(path, self.progress)
        if index["own"] or not self.may_be_whole:
            return index
        return {**replace(self._layout, takes_all=True).index(path, self.progress), "own": []}


def _seal_index(key: str, index: Any) -> dict[str, Any]:
    """Return the lists of *index*, an unchecked value from a file, with their hash."""
    content = {name: index.get(name) for name in ("cells", "classes", "own")} if isinstance(index, dict) else {}
    return {**content, "sha256": _digest([key, content])}


class _Place(NamedTuple):
    """Cell and class of a folder of an archive."""

    cell: Cell
    class_name: str
    """Class of the files in the folder; empty if they have none."""
    is_hidden: bool
    below: Folders
    """Folders below the cell's folder."""


@dataclass(frozen=True, kw_only=True)
class _Layout:
    """Rules from the names in an archive to cells and classes."""

    kind: LayoutKind
    cells: tuple[Cell, ...]
    folders: Mapping[Cell, str]
    rule: ClassRule
    takes_all: bool = False
    """Whether every folder is the only cell's."""

    def members(self, stream: Members, path: Path) -> Iterator[tuple[Entry, Members]]:
        """Yield every file and link with the stream that holds it; names in inner archives are `<class>/<name>`."""
        return _iterate_nested(stream, path) if self.kind == "nested" else zip(stream, repeat(stream), strict=False)

    def find_place(self, folder: str) -> _Place | None:
        """Return cell and class of *folder*, None if it belongs to no cell."""
        parts = tuple(part for part in folder.split("/") if part)
        if self.kind != "corruptions" or self.takes_all:
            return self._make_place(self.cells[0], parts)
        ends = [number for number, part in enumerate(parts, 1) if part not in self._wrappers]
        # Search from the end: an archive may have parent folders around its cells.
        for last in range(len(ends), 0, -1):
            for length in self._lengths:
                names = tuple(parts[end - 1] for end in ends[max(0, last - length) : last])
                if cell := self._cells_by_parts.get(names):
                    return self._make_place(cell, parts[ends[last - 1] :])
        return None

    def _make_place(self, cell: Cell, below: Folders) -> _Place:
        # An inner archive has the name of its class, even if it is the name of a wrapper.
        class_name = "".join(below[-1:]) if self.kind == "nested" else self.rule.class_folder(below)
        return _Place(cell, class_name, any(map(is_hidden, below)), below)

    def require_unambiguous(self, cell: Cell, found: Collection[Folders], path: Path) -> None:
        """Refuse folders of images of *cell* that may or may not be classes."""
        if not self.rule.is_by_file and self.kind != "nested":
            require_unambiguous(found, self.rule.named, where=f"{path}, {cell.key},")
            if not self.takes_all:
                require_one_level(found, self.rule.named, where=f"{path}, {cell.key},")
        if self.takes_all:
            folder = self.folders.get(cell, cell.path)
            with_class = (below for below in found if self.rule.is_by_file or class_depth(below, self.rule.named))
            find_only_parent(with_class, self.rule.named, where=path, folder=folder)

    def image_class(self, place: _Place, file_name: str, *, path: Path) -> str:
        """Return the class of a file of the archive *path*, empty if it is not an image or has no class."""
        if not is_image(file_name):
            return ""
        require_unicode(f"{place.class_name}/{file_name}", of=path, error=ImagesError)
        return self.rule.class_of(place.class_name, file_name, where=path)

    def index(self, path: Path, progress: Reporter) -> dict[str, list[str]]:
        """Return the cells and classes of the archive *path*."""
        place_of = cache(self.find_place)
        found: set[tuple[Cell, str]] = set()
        folders: dict[Cell, set[Folders]] = {}
        with opened_archive(path, progress=progress) as stream:
            for entry, _ in self.members(stream, path):
                folder, _, file_name = entry.name.rpartition("/")
                place = place_of(folder)
                if place is not None and not place.is_hidden and not file_name.startswith("."):
                    found.add((place.cell, self.image_class(place, file_name, path=path)))
                    if is_image(file_name):
                        folders.setdefault(place.cell, set()).add(place.below)
        for cell, below in folders.items():
            self.require_unambiguous(cell, below, path)
        cells = sorted({cell.key for cell, class_name in found if class_name})
        return {
            "cells": cells,
            "classes": sorted({class_name for _, class_name in found} - {""}),
            "own": cells,
        }

    @cached_property
    def _wrappers(self) -> frozenset[str]:
        """Wrappers around cells; a folder of a cell may have such a name too."""
        return WRAPPERS.difference(*self._cells_by_parts)

    @cached_property
    def _cells_by_parts(self) -> dict[tuple[str, ...], Cell]:
        folders = {cell: self.folders.get(cell, cell.path) for cell in self.cells}
        return {tuple(part for part in folder.split("/") if part): cell for cell, folder in folders.items()}

    @cached_property
    def _lengths(self) -> tuple[int, ...]:
        return tuple(sorted({len(parts) for parts in self._cells_by_parts} - {0}))


@dataclass(kw_only=True)
class _Home:
    """Cell and class of the files in one folder, and the images found so far of the cell."""

    place: _Place
    found: "_CellImages"
    has_images: bool = False


class _CellImages:
    """The images and other files of one cell in the archive *path*."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.images = Slices(path, modified_ns=_status(path).st_mtime_ns)
        self.num_hidden = 0
        self.strays: list[Path] = []


class _ArchivePass:
    """One pass over an archive for all its requested cells; a second pass if the archive has links."""

    def __init__(self, path: Path, cells: Sequence[Cell], *, layout: _Layout, spill: SpillFolder) -> None:
        self._path = path
        self._layout = layout
        self._spill = spill
        self._found = {cell: _CellImages(path) for cell in cells}
        self._links: dict[str, list[Entry]] = {}
        self._homes: dict[str, _Home | None] = {}  # a folder has many files

    @gc_paused()
    def run(self, *, expected_md5: str | None, progress: Reporter) -> dict[Cell, _CellImages]:
        """Return the images found of every cell, which may be none."""
        with opened_archive(self._path, expected_md5=expected_md5, progress=progress) as stream:
            for entry, source in self._layout.members(stream, self._path):
                self._add(entry, source.read)
        if self._links:
            self._resolve_links(progress)
        for cell, found in self._found.items():
            homes = (home for home in self._homes.values() if home and home.has_images and home.place.cell == cell)
            self._layout.require_unambiguous(cell, {home.place.below for home in homes}, self._path)
            found.images = self._spill.images(cell) or found.images
            self._require_unique_names(cell, found.images)
        return self._found

    def _find_home(self, folder: str) -> _Home | None:
        place = self._layout.find_place(folder)
        if place is None or place.cell not in self._found:
            return None
        return _Home(place=place, found=self._found[place.cell])

    def _add(self, entry: Entry, read: Callable[[], bytes]) -> None:
        folder, _, file_name = entry.name.rpartition("/")
        if folder not in self._homes:
            self._homes[folder] = self._find_home(folder)
        home = self._homes[folder]
        if home is None:
            return
        if home.place.is_hidden or file_name.startswith("."):
            home.found.num_hidden += 1
        elif self._layout.rule.leaves_out(home.place.class_name, file_name):
            return
        elif entry.link:
            self._links.setdefault(entry.link, []).append(entry)
        elif not is_image(file_name):
            home.found.strays.append(self._path / entry.name)
        elif class_name := self._layout.image_class(home.place, file_name, path=self._path):
            self._require_bounded(entry)
            home.has_images = True
            if entry.offset is None:
                self._spill.file(home.place.cell).append(class_name, file_name, read())
            else:
                home.found.images.append(class_name, file_name, size_bytes=entry.size_bytes, offset=entry.offset)
        else:
            home.has_images = True
            home.found.strays.append(self._path / entry.name)

    def _resolve_links(self, progress: Reporter) -> None:
        """Add the targets of links in a second pass: they may come before the links, or be in no cell."""
        links = dict(self._links)
        with opened_archive(self._path, progress=progress) as stream:
            for entry, source in self._layout.members(stream, self._path):
                if entry.name in links and not entry.link:
                    read = cache(source.read)  # the same bytes for each link
                    for link in links.pop(entry.name):
                        self._add(entry._replace(name=link.name), read)
        for target, (link, *_) in links.items():
            raise ImagesError(
                f"{self._path}: {link.name} links to {target}, which is not a file in the archive; expected a link to "
                "a file in the archive: remove the link"
            )

    def _require_bounded(self, entry: Entry) -> None:
        if entry.size_bytes > _MAX_IMAGE_BYTES:
            raise ImagesError(
                f"{self._path}: {entry.name} has {entry.size_bytes} bytes, too many for an image; expected at most "
                f"{_MAX_IMAGE_BYTES}: remove it from the archive"
            )

    def _require_unique_names(self, cell: Cell, images: Slices) -> None:
        # Two folders of one class, one of them inside a wrapper, must not hold the same name either.
        name = images.find_duplicate_name()
        if name is not None:
            raise ImagesError(
                f"{self._path}: {name} occurs twice in {cell.key}; expected unique names: remove one of the two files"
            )


def _iterate_nested(stream: Members, path: Path) -> Iterator[tuple[Entry, Members]]:
    for entry in stream:
        name = PurePosixPath(entry.name)
        if entry.link or not is_tar_like(name.name) or name.name.startswith("."):
            yield entry, stream
        elif name.suffix != ".tar":
            raise ImagesError(
                f"{path}: {name} is an archive in an unsupported format; expected one plain <class>.tar per class: "
                "repack it, or unpack all of them"
            )
        else:
            inner = TarStream(stream, f"{path}/{name}", begins_at=entry.offset)
            yield from ((_under(name.stem, member), inner) for member in inner)


def _under(class_name: str, member: Entry) -> Entry:
    """Return the *member* of an inner archive with its name and its link target moved into *class_name*."""
    link = member.link and f"{class_name}/{member.link.rpartition('/')[2]}"
    return member._replace(name=f"{class_name}/{member.name.rpartition('/')[2]}", link=link)


def _stamp(path: Path) -> list[str | int]:
    status = _status(path)
    return [path.name, status.st_size, status.st_mtime_ns]


def _status(path: Path) -> os.stat_result:
    try:
        return path.stat()
    except OSError as error:
        raise ImagesError(
            f"{path} cannot be read ({error.strerror}); expected a tar, tar.gz or zip archive: check the path and "
            "your permissions"
        ) from error


def _digest(facts: Sequence[object]) -> str:
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()
