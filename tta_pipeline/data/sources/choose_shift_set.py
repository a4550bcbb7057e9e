"""The choice of the shift set whose names fit the files of a source, for `new-benchmark`."""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tta_pipeline.data.shifts.shift_set import MAX_SEVERITY, SHIFT_PATTERN, ShiftSet
from tta_pipeline.errors import SourceError
from tta_pipeline.util.partitions import Cell

CUSTOM_SET = "custom"
"""Name of a new shift set with the names found, used if no known set fits."""
FoundCell = tuple[str, int]
"""Name of a shift's folder or file, and a severity; 0 if there is none."""


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


def choose_shift_set(found: Iterable[FoundCell], place: Place) -> ChosenShiftSet:
    """Return the known shift set that fits the cells *found* best, or else a new set with their names.

    Raises:
        SourceError: no set fits, and none of the names is valid for a shift.
    """
    found = sorted(set(found))
    ranked = sorted(place.sets, key=lambda each: _fit(each, found, place.hints), reverse=True)
    if ranked and _fit(ranked[0], found, place.hints)[0]:
        return _choose_known(ranked[0], found)
    return _make_custom_set(found, place)


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


def _fit(shift_set: ShiftSet, found: Sequence[FoundCell], hints: frozenset[str]) -> tuple[int, bool]:
    """Return how many of the names *found* are in the set, and whether a folder or archive is named like the set."""
    names = {cell.corruption for cell in _cells_of(shift_set, found)}
    return len(names), bool(hints & {_plain(shift_set.name), _plain(shift_set.title)})


def _cells_of(shift_set: ShiftSet, found: Sequence[FoundCell]) -> tuple[Cell, ...]:
    cells = (Cell(corruption=shift_set.shift_of_folder(name), severity=severity) for name, severity in found)
    return tuple(
        cell for cell in cells if cell.corruption in shift_set.names and cell.severity in shift_set.cell_severities
    )


def _choose_known(shift_set: ShiftSet, found: Sequence[FoundCell]) -> ChosenShiftSet:
    cells = _cells_of(shift_set, found)
    foreign = sorted({name for name, _ in found if shift_set.shift_of_folder(name) not in shift_set.names})
    remark = (
        f"Left out, as not among the {len(shift_set.names)} shifts of {shift_set.name}: {', '.join(foreign)}. To have "
        "them too, list all names in the field `custom`, as in `custom: {names: [...], severities: [...]}`."
    )
    return ChosenShiftSet(
        shift_set=shift_set, cells=cells, remarks=(*([remark] if foreign else []), *missing_cell_remarks(cells))
    )


def _make_custom_set(found: Sequence[FoundCell], place: Place) -> ChosenShiftSet:
    fitting = [(name, severity) for name, severity in found if re.fullmatch(SHIFT_PATTERN, name)]
    names = tuple(dict.fromkeys(name for name, _ in fitting))
    severities = tuple(sorted({severity for _, severity in fitting if 0 < severity <= MAX_SEVERITY}))
    if not names:
        some = ", ".join(sorted({name for name, _ in found})[:3])
        raise SourceError(
            f"{place.paths[0]} has {some}; expected the names of shifts, of letters, digits and _ + - .: rename them"
        )
    shift_set = ShiftSet(name=CUSTOM_SET, names=names, severities=severities)
    cells = _cells_of(shift_set, fitting)
    remark = (
        "The names belong to no known shift set, so the field `custom` lists them: put them into the order in which "
        "they are to run."
    )
    return ChosenShiftSet(shift_set=shift_set, cells=cells, remarks=(remark, *missing_cell_remarks(cells)))


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
