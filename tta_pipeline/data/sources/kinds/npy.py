"""The kind `npy`: arrays like the published CIFAR-10-C."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Self

from tta_pipeline.data.shifts.shift_set import MAX_SEVERITY, ShiftSet
from tta_pipeline.data.sources.choose_shift_set import choose_shift_set, is_shift
from tta_pipeline.data.sources.kinds.clean_images import Clean, add_clean_and_train
from tta_pipeline.data.sources.npy_images import NpyImages, read_images
from tta_pipeline.data.sources.source_options import SourceOptions
from tta_pipeline.data.sources.source_section import (
    Cells,
    ImagesSection,
    SourceContext,
    SourceSection,
    Survey,
    filter_by_prefix,
    quote_for_yaml,
)
from tta_pipeline.errors import SourceError
from tta_pipeline.util.partitions import Cell

if TYPE_CHECKING:
    from tta_pipeline.data.sources.choose_shift_set import Place
    from tta_pipeline.data.sources.listing import Source
    from tta_pipeline.data.sources.npy_images import NpyImages
    from tta_pipeline.data.sources.source_section import Survey

LABELS_FILE = "labels.npy"


class NpySource(ImagesSection):
    """CIFAR-10-C and CIFAR-100-C as published: `<root>/<corruption>.npy` and `labels.npy`.

    Labels are positions in `class_map`; if it names no file or list, the labels themselves are the classes.
    """

    kind: Literal["npy"]
    root: Path
    clean: Clean | None = None
    """The uncorrupted images."""
    train: Clean | None = None
    """The images to train source models on."""

    def open(self, at: SourceContext) -> "Source":
        """Return the images."""
        return add_clean_and_train(open_arrays(self.root.expanduser(), at), at, clean=self.clean, train=self.train)

    @classmethod
    def from_options(cls, options: SourceOptions) -> Self | None:
        """Return the section of a single folder that has `labels.npy`."""
        is_there = options.folder is not None and (options.folder / LABELS_FILE).exists()
        return cls(kind="npy", root=options.folder) if options.folder and is_there else None

    @contextmanager
    def opened_whole(self, at: SourceContext, prefixes: Sequence[str] = ()) -> Iterator[tuple["Source", Cells]]:
        """Yield the source with the cells whose arrays exist."""
        cells = filter_by_prefix(at.cells, prefixes)
        there = tuple(cell for cell in cells if self.own_place(cell, at.shift_set).exists())
        yield self.open(replace(at, cells=there)), there

    @classmethod
    def detect(cls, place: "Place") -> "Survey | None":
        """Return the survey of a folder of arrays."""
        root = _folder_of_arrays(place.folder) if place.folder else None
        return survey_arrays(cls(kind="npy", root=root), root, place) if root else None

    def yaml_lines(self, found: "Survey") -> Iterator[str]:
        """Yield the lines of a new benchmark file."""
        order = ", severity 1 first," if any(found.severities) else ""
        yield f"  kind: npy  # <corruption>.npy{order} and labels.npy"
        yield f"  root: {quote_for_yaml(self.root)}"

    def places(self, cell: Cell, shift_set: ShiftSet) -> tuple[Path, ...]:
        """Return the arrays of images and labels."""
        return (self.own_place(cell, shift_set), self.root.expanduser() / LABELS_FILE)

    def own_place(self, cell: Cell, shift_set: ShiftSet) -> Path:
        """Return the array of the images."""
        return self.root.expanduser() / f"{shift_set.folder_of(cell.corruption)}.npy"


def open_arrays(root: Path, at: SourceContext, *, expected_md5: str | None = None) -> "NpyImages":
    """Return the images of the arrays in *root*, a folder or a tar."""
    return NpyImages(
        root=root,
        cells=at.cells,
        spill_root=at.spill_root,
        class_names_by_label=at.classes(),
        severities=at.shift_set.cell_severities,
        file_names={shift: f"{folder}.npy" for shift, folder in at.shift_set.folders.items()},
        expected_md5=expected_md5,
        progress=at.progress,
    )


def survey_arrays(source: SourceSection, root: Path, place: "Place") -> "Survey":
    """Return the survey of the arrays in *root*, a folder or a tar.

    Raises:
        SourceError: there are only labels, or a file is not an array.
    """
    images = NpyImages(root=root, cells=(), spill_root=root)
    names = images.shifts()
    if not names:
        raise SourceError(f"{root} has only {LABELS_FILE}; expected arrays of images beside it: restore them")
    first = read_images(images.place(f"{names[0]}.npy"), 1)
    is_known = any(is_shift(name, place.sets) for name in names)
    levels = range(MAX_SEVERITY + 1) if is_known else _guessed(len(first))
    cells = [(name, severity) for name in names for severity in levels]
    found = choose_shift_set(cells, replace(place, paths=(*place.paths, root)))
    return Survey(
        source=source,
        shift_set=found.shift_set,
        corruptions=found.corruptions,
        severities=found.shift_set.cell_severities,
        num_classes=len(images.class_names()),
        image_size=(first.shape[1], first.shape[2]),
        remarks=found.remarks,
    )


def _folder_of_arrays(root: Path) -> Path | None:
    """Return *root* or the only folder in it, whichever has `labels.npy`; None if neither has."""
    inner = [path for path in sorted(root.iterdir()) if path.is_dir() and not path.name.startswith(".")]
    folders = (root, *(inner if len(inner) == 1 else ()))
    return next((folder for folder in folders if (folder / LABELS_FILE).exists()), None)


def _guessed(num_rows: int) -> tuple[int, ...]:
    """Return the severities of an array of an unknown set: five if the number of rows is a multiple of five."""
    return (1, 2, 3, 4, 5) if num_rows % 5 == 0 else (0,)
