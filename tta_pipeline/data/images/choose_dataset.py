"""Choose the dataset whose names fit the files of a source, for `new-benchmark`."""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Self

from tta_pipeline.data.datasets.dataset import SHIFT_PATTERN, Dataset
from tta_pipeline.data.labels.shipped_lists import shipped_classes
from tta_pipeline.domain.cells import Cell
from tta_pipeline.errors import ImagesError

CUSTOM_SET = "custom"
"""Name of a new dataset with the names found, used if no known dataset fits."""
FoundCell = tuple[str, int]
"""Name of a shift's folder or file, and a severity; 0 if there is none."""


@dataclass(frozen=True, kw_only=True)
class CellImages:
    """The images of a cell, which distinguish a published dataset from others with the same names; None: unknown."""

    num_images: int | None
    num_classes: int | None
    size: tuple[int, int] | None
    """Height and width of an image in pixels."""

    @classmethod
    def of(cls, dataset: Dataset) -> Self:
        """Return the known facts about the published images of *dataset*; no facts if it states no number."""
        if dataset.images_per_cell is None:
            return cls(num_images=None, num_classes=None, size=None)
        return cls(
            num_images=dataset.images_per_cell,
            num_classes=len(shipped_classes(dataset.classes)) if dataset.classes else dataset.num_classes,
            size=(dataset.image_size, dataset.image_size) if dataset.image_size else None,
        )

    def fit(self, dataset: Dataset) -> bool:
        """Return whether no known fact about these images differs in *dataset*."""
        return all(mine == its for mine, its in self._beside(dataset) if None not in (mine, its))

    def num_alike(self, dataset: Dataset) -> int:
        """Return how many of the facts are equal in *dataset*."""
        return sum(mine == its for mine, its in self._beside(dataset) if its is not None)

    def _beside(self, dataset: Dataset) -> Iterator[tuple[object, object]]:
        return zip(astuple(self), astuple(self.of(dataset)), strict=True)

    def __str__(self) -> str:
        images = None if self.num_images is None else f"{self.num_images:,} images"
        classes = None if self.num_classes is None else f"{self.num_classes:,} classes"
        size = None if self.size is None else f"{'x'.join(map(str, self.size))} pixels"
        return ", ".join(each for each in (images, classes, size) if each)


@dataclass(frozen=True, kw_only=True)
class Place:
    """A folder or archives named by the user, with the known datasets."""

    paths: tuple[Path, ...]
    """One folder, or one or more archives; absolute."""
    sets: tuple[Dataset, ...]
    """Known datasets; if several fit equally well, the first is chosen."""

    @property
    def folder(self) -> Path | None:
        """The folder; None if the user named archives."""
        return self.paths[0] if self.paths[0].is_dir() else None

    @property
    def hints(self) -> frozenset[str]:
        """Names of the folder or the archives, which may name a dataset."""
        return frozenset(_plain(path.name.partition(".tar")[0].removesuffix(".zip")) for path in self.paths)

    def severity_of_folder(self, folder: str, shift_folder: str) -> str:
        """Return the number in the *folder* of a severity in *shift_folder*, as a known dataset names it."""
        numbers = (each.severity_of_folder(folder, shift_folder) for each in self.sets)
        return next((number for number in numbers if number != folder), folder)

    def has(self, cell: Cell) -> bool:
        """Return whether a known dataset has *cell*; the cell's corruption may be the name of a shift's folder."""
        return any(_cells_of(each, [(cell.corruption, cell.severity)]) for each in self.sets)


@dataclass(frozen=True, kw_only=True)
class ChosenDataset:
    """A dataset, and which of its cells were found."""

    dataset: Dataset
    cells: tuple[Cell, ...]
    remarks: tuple[str, ...]

    @property
    def corruptions(self) -> tuple[str, ...]:
        """Shifts that were found, in the order of the dataset."""
        there = {cell.corruption for cell in self.cells}
        return tuple(name for name in self.dataset.names if name in there)

    @property
    def severities(self) -> tuple[int, ...]:
        """Severities that were found."""
        return tuple(sorted({cell.severity for cell in self.cells}))


def choose_dataset(found: Iterable[FoundCell], place: Place, images: CellImages) -> ChosenDataset:
    """Return the known dataset that has all cells *found* and such *images*, or a new dataset with their names."""
    found = sorted(set(found))
    named = [each for each in place.sets if len(_cells_of(each, found)) == len(found)]
    fitting = [each for each in named if images.fit(each)]
    if named and not fitting:
        like = max(named, key=lambda each: (images.num_alike(each), _is_hinted(each, place)))
        return _copy_names(like, found, images)
    if not fitting:
        return _make_custom_set(found, place)
    dataset = max(fitting, key=lambda each: _is_hinted(each, place))
    cells = _cells_of(dataset, found)
    return ChosenDataset(dataset=dataset, cells=cells, remarks=tuple(missing_cell_remarks(cells)))


def find_whole_set(name: str, sets: Iterable[Dataset]) -> tuple[Dataset, str] | None:
    """Return the dataset without severities that has a folder with this *name*, and the shift; otherwise None."""
    for each in sets:
        for shift in each.names:
            names = {shift, each.folder_of(shift), *([each.name, each.title] if len(each.names) == 1 else [])}
            if not each.severities and _plain(name) in map(_plain, names):
                return each, shift
    return None


def is_shift(name: str, sets: Iterable[Dataset]) -> bool:
    """Return whether *name* is the name of a shift or of its folder."""
    return any(each.shift_of_folder(name) in each.names for each in sets)


def _is_hinted(dataset: Dataset, place: Place) -> bool:
    """Return whether a folder or archive is named like the dataset."""
    return bool(place.hints & {_plain(dataset.name), _plain(dataset.title)})


def _cells_of(dataset: Dataset, found: Sequence[FoundCell]) -> tuple[Cell, ...]:
    cells = (Cell(corruption=dataset.shift_of_folder(name), severity=severity) for name, severity in found)
    return tuple(
        cell for cell in cells if cell.corruption in dataset.names and cell.severity in dataset.cell_severities
    )


def _copy_names(like: Dataset, found: Sequence[FoundCell], images: CellImages) -> ChosenDataset:
    """Return a custom dataset of the cells *found*, which have the names of *like* and other *images*."""
    cells = _cells_of(like, found)
    names = tuple(name for name in like.names if name in {cell.corruption for cell in cells})
    dataset = Dataset(
        name=CUSTOM_SET,
        names=names,
        severities=tuple(sorted({cell.severity for cell in cells if cell.severity})),
        folders={name: folder for name, folder in like.folders.items() if name in names},
    )
    class_map = f", and `class_map: {like.classes}` instead of `class_map: folders`" if like.classes else ""
    remark = (
        f"The names match {like.name}, but its cells have {CellImages.of(like)}, and one here has {images}: so "
        "these are your own images, and the field `custom` lists the names. If they are some of the published "
        f"images, write `dataset: {like.name}` and `subset: true` instead of `custom`{class_map}."
    )
    return ChosenDataset(dataset=dataset, cells=cells, remarks=(remark, *missing_cell_remarks(cells)))


def _make_custom_set(found: Sequence[FoundCell], place: Place) -> ChosenDataset:
    """Return a custom dataset of the cells *found*; known names are in the order of the nearest known dataset."""
    names = {name for name, _ in found if re.fullmatch(SHIFT_PATTERN, name)}
    odd = sorted({name for name, _ in found} - names)
    if not names:
        raise ImagesError(
            f"{place.paths[0]} has names that cannot be used for shifts: {', '.join(odd[:3])}; expected letters, "
            "digits and _ + - . only: rename them"
        )
    nearest = max(place.sets, key=lambda each: len(names.intersection(each.names)), default=None)
    known = [name for name in nearest.names if name in names] if nearest else []
    dataset = Dataset(
        name=CUSTOM_SET,
        names=(*known, *sorted(names.difference(known))),
        severities=tuple(sorted({severity for name, severity in found if name in names and severity > 0})),
    )
    cells = _cells_of(dataset, found)
    remark = (
        "No known dataset has all of these names, so the field `custom` lists them: put them into the order in which "
        "they are to run."
    )
    left_out = f"Left out, since names of shifts are letters, digits and _ + - .: {', '.join(odd)}."
    remarks = (remark, *([left_out] if odd else []), *missing_cell_remarks(cells))
    return ChosenDataset(dataset=dataset, cells=cells, remarks=remarks)


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
        yield f"Not found: {', '.join(missing)}; a run over these cells fails with an error."


def _plain(name: str) -> str:
    """Return *name* in the form of dataset names, so that ImageNet-R and imagenet_r are equal."""
    return name.lower().replace("-", "_")
