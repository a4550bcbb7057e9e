"""The choice of the shift set whose names fit the files of a source, for `new-benchmark`."""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Self

from tta_pipeline.data.labels.shipped_lists import shipped_classes
from tta_pipeline.data.shifts.shift_set import SHIFT_PATTERN, ShiftSet
from tta_pipeline.domain.cells import Cell
from tta_pipeline.errors import SourceError

CUSTOM_SET = "custom"
"""Name of a new shift set with the names found, used if no known set fits."""
FoundCell = tuple[str, int]
"""Name of a shift's folder or file, and a severity; 0 if there is none."""


@dataclass(frozen=True, kw_only=True)
class CellImages:
    """The images of a cell, which tell a published set from others with the same names; None: it is not known."""

    num_images: int | None
    num_classes: int | None
    size: tuple[int, int] | None
    """Height and width of an image in pixels."""

    @classmethod
    def of(cls, shift_set: ShiftSet) -> Self:
        """Return what is known of the published images of *shift_set*; nothing of a set that states no number."""
        if shift_set.images_per_cell is None:
            return cls(num_images=None, num_classes=None, size=None)
        return cls(
            num_images=shift_set.images_per_cell,
            num_classes=len(shipped_classes(shift_set.classes)) if shift_set.classes else shift_set.num_classes,
            size=(shift_set.image_size, shift_set.image_size) if shift_set.image_size else None,
        )

    def fit(self, shift_set: ShiftSet) -> bool:
        """Return whether nothing that is known of these images is otherwise in *shift_set*."""
        return all(mine == its for mine, its in self._beside(shift_set) if None not in (mine, its))

    def num_alike(self, shift_set: ShiftSet) -> int:
        """Return how many of the facts are the same in *shift_set*."""
        return sum(mine == its for mine, its in self._beside(shift_set) if its is not None)

    def _beside(self, shift_set: ShiftSet) -> Iterator[tuple[object, object]]:
        return zip(astuple(self), astuple(self.of(shift_set)), strict=True)

    def __str__(self) -> str:
        images = None if self.num_images is None else f"{self.num_images:,} images"
        classes = None if self.num_classes is None else f"{self.num_classes:,} classes"
        size = None if self.size is None else f"{'x'.join(map(str, self.size))} pixels"
        return ", ".join(each for each in (images, classes, size) if each)


@dataclass(frozen=True, kw_only=True)
class Place:
    """A folder or archives named by the user, with the known shift sets."""

    paths: tuple[Path, ...]
    """One folder, or one or more archives; absolute."""
    sets: tuple[ShiftSet, ...]
    """Known shift sets; if several fit equally well, the first is chosen."""

    @property
    def folder(self) -> Path | None:
        """The folder; None if the user named archives."""
        return self.paths[0] if self.paths[0].is_dir() else None

    @property
    def hints(self) -> frozenset[str]:
        """Names of the folder or the archives, which may name a data set."""
        return frozenset(_plain(path.name.partition(".tar")[0].removesuffix(".zip")) for path in self.paths)

    def has(self, cell: Cell) -> bool:
        """Return whether a known set has *cell*; the cell's corruption may be the name of a shift's folder."""
        return any(_cells_of(each, [(cell.corruption, cell.severity)]) for each in self.sets)


@dataclass(frozen=True, kw_only=True)
class ChosenShiftSet:
    """A shift set, and those of its cells that were found."""

    shift_set: ShiftSet
    cells: tuple[Cell, ...]
    remarks: tuple[str, ...]

    @property
    def corruptions(self) -> tuple[str, ...]:
        """Shifts that were found, in the order of the set."""
        there = {cell.corruption for cell in self.cells}
        return tuple(name for name in self.shift_set.names if name in there)

    @property
    def severities(self) -> tuple[int, ...]:
        """Severities that were found."""
        return tuple(sorted({cell.severity for cell in self.cells}))


def choose_shift_set(found: Iterable[FoundCell], place: Place, images: CellImages) -> ChosenShiftSet:
    """Return the known shift set that has all cells *found* and such *images*, or else a new set with their names."""
    found = sorted(set(found))
    named = [each for each in place.sets if len(_cells_of(each, found)) == len(found)]
    fitting = [each for each in named if images.fit(each)]
    if named and not fitting:
        like = max(named, key=lambda each: (images.num_alike(each), _is_hinted(each, place)))
        return _copy_names(like, found, images)
    if not fitting:
        return _make_custom_set(found, place)
    shift_set = max(fitting, key=lambda each: _is_hinted(each, place))
    cells = _cells_of(shift_set, found)
    return ChosenShiftSet(shift_set=shift_set, cells=cells, remarks=tuple(missing_cell_remarks(cells)))


def find_whole_set(name: str, sets: Iterable[ShiftSet]) -> tuple[ShiftSet, str] | None:
    """Return the set without severities that has a folder with this *name*, and the shift; None if there is none."""
    for each in sets:
        for shift in each.names:
            names = {shift, each.folder_of(shift), *([each.name, each.title] if len(each.names) == 1 else [])}
            if not each.severities and _plain(name) in map(_plain, names):
                return each, shift
    return None


def is_shift(name: str, sets: Iterable[ShiftSet]) -> bool:
    """Return whether *name* is the name of a shift or of its folder."""
    return any(each.shift_of_folder(name) in each.names for each in sets)


def _is_hinted(shift_set: ShiftSet, place: Place) -> bool:
    """Return whether a folder or archive is named like the set."""
    return bool(place.hints & {_plain(shift_set.name), _plain(shift_set.title)})


def _cells_of(shift_set: ShiftSet, found: Sequence[FoundCell]) -> tuple[Cell, ...]:
    cells = (Cell(corruption=shift_set.shift_of_folder(name), severity=severity) for name, severity in found)
    return tuple(
        cell for cell in cells if cell.corruption in shift_set.names and cell.severity in shift_set.cell_severities
    )


def _copy_names(like: ShiftSet, found: Sequence[FoundCell], images: CellImages) -> ChosenShiftSet:
    """Return a custom set of the cells *found*, which have the names of *like* and other *images*."""
    cells = _cells_of(like, found)
    names = tuple(name for name in like.names if name in {cell.corruption for cell in cells})
    shift_set = ShiftSet(
        name=CUSTOM_SET,
        names=names,
        severities=tuple(sorted({cell.severity for cell in cells if cell.severity})),
        folders={name: folder for name, folder in like.folders.items() if name in names},
    )
    class_map = f", and `class_map: {like.classes}` in place of `class_map: folders`" if like.classes else ""
    remark = (
        f"The names are those of {like.name}, but its cells have {CellImages.of(like)}, and one here has {images}: so "
        "these are images of your own, and the field `custom` lists the names. If they are some of the published "
        f"images, write `shift_set: {like.name}` and `subset: true` in place of `custom`{class_map}."
    )
    return ChosenShiftSet(shift_set=shift_set, cells=cells, remarks=(remark, *missing_cell_remarks(cells)))


def _make_custom_set(found: Sequence[FoundCell], place: Place) -> ChosenShiftSet:
    """Return a custom set of the cells *found*; the names that known sets have are in the order of the nearest one."""
    names = {name for name, _ in found if re.fullmatch(SHIFT_PATTERN, name)}
    odd = sorted({name for name, _ in found} - names)
    if not names:
        raise SourceError(
            f"{place.paths[0]} has {', '.join(odd[:3])}; expected the names of shifts, of letters, digits and _ + - .: "
            "rename them"
        )
    nearest = max(place.sets, key=lambda each: len(names.intersection(each.names)), default=None)
    known = [name for name in nearest.names if name in names] if nearest else []
    shift_set = ShiftSet(
        name=CUSTOM_SET,
        names=(*known, *sorted(names.difference(known))),
        severities=tuple(sorted({severity for name, severity in found if name in names and severity > 0})),
    )
    cells = _cells_of(shift_set, found)
    remark = (
        "No known shift set has all of these names, so the field `custom` lists them: put them into the order in which "
        "they are to run."
    )
    left_out = f"Left out, since names of shifts are letters, digits and _ + - .: {', '.join(odd)}."
    remarks = (remark, *([left_out] if odd else []), *missing_cell_remarks(cells))
    return ChosenShiftSet(shift_set=shift_set, cells=cells, remarks=remarks)


def missing_cell_remarks(cells: Sequence[Cell]) -> Iterator[str]:
    """Yield a remark if *cells* lack some combinations of their corruptions and severities."""
    corruptions, severities = {cell.corruption for cell in cells}, {cell.severity for cell in cells}
    missing = sorted(
        f"{corruption}|{severity}"
        for corruption in corruptions
        for severity in severities
        if Cell(corruption=corruption, severity=severity) not in cells
    )
    if missing:
        yield f"Not found: {', '.join(missing)}; a run over these cells fails and says so."


def _plain(name: str) -> str:
    """Return *name* in the form of set names, so that ImageNet-R and imagenet_r are equal."""
    return name.lower().replace("-", "_")
