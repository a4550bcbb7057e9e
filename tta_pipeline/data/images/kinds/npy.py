"""The kind `npy`: arrays like the published CIFAR-10-C, read without unpickling and stored as PNG."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
import numpy.typing as npt
from PIL import Image

from tta_pipeline.data.datasets.dataset import Dataset
from tta_pipeline.data.formats.npy_format import MAX_START_BYTES, ArrayHeader, read_array_header
from tta_pipeline.data.image_bytes import encode_png
from tta_pipeline.data.images.choose_dataset import CellImages, Place, choose_dataset, is_shift
from tta_pipeline.data.images.class_folders import folders_in
from tta_pipeline.data.images.image_options import ImageOptions
from tta_pipeline.data.images.images_section import (
    Cells,
    ConvertedSection,
    ImagesContext,
    ImagesSection,
    Survey,
    filter_by_prefix,
)
from tta_pipeline.data.images.kinds.clean_images import Clean, add_clean_and_train
from tta_pipeline.data.images.listing import Listing, Source
from tta_pipeline.data.images.numbered_classes import number_names
from tta_pipeline.data.images.packed_arrays import ArrayPlace, find_packed_arrays
from tta_pipeline.data.images.spill import SpilledImages, SpillFile, SpillFolder
from tta_pipeline.data.labels.class_map import require_zero_based_labels
from tta_pipeline.domain.cells import Cell
from tta_pipeline.errors import ImagesError
from tta_pipeline.util.identifiers import find_duplicates
from tta_pipeline.util.progress import Reporter, quiet_reporter

LABELS_FILE = "labels.npy"
_MAX_REPEATS = 10
"""Most severities of one array. Labels that repeat more often belong to images that cycle through the classes."""


class NpySection(ConvertedSection):
    """CIFAR-10-C and CIFAR-100-C as published: `<root>/<corruption>.npy` and `labels.npy`.

    Labels are positions in `class_map`; if it names no file or list, the labels themselves are the classes.
    """

    kind: Literal["npy"]
    root: Path
    """Folder of the `.npy` files."""
    clean: Clean | None = None
    """The uncorrupted images."""
    train: Clean | None = None
    """Images to train models on."""

    def open(self, at: ImagesContext) -> Source:
        """Return the images."""
        return add_clean_and_train(open_arrays(self.root.expanduser(), at), at, clean=self.clean, train=self.train)

    @classmethod
    def from_options(cls, options: ImageOptions) -> Self | None:
        """Return the section of a single folder that has `labels.npy`."""
        is_there = options.folder is not None and (options.folder / LABELS_FILE).exists()
        return cls(kind="npy", root=options.folder) if options.folder and is_there else None

    @contextmanager
    def opened_whole(self, at: ImagesContext, prefixes: Sequence[str] = ()) -> Iterator[tuple[Source, Cells]]:
        """Yield the source with the cells whose arrays exist."""
        cells = filter_by_prefix(at.cells, prefixes)
        there = tuple(cell for cell in cells if self.own_place(cell, at.dataset).exists())
        yield self.open(replace(at, cells=there)), there

    @classmethod
    def detect(cls, place: Place) -> Survey | None:
        """Return the survey of a folder of arrays."""
        root = _folder_of_arrays(place.folder) if place.folder else None
        return survey_arrays(cls(kind="npy", root=root), root, place) if root else None

    def places(self, cell: Cell, dataset: Dataset) -> tuple[Path, ...]:
        """Return the arrays of images and labels."""
        return (self.own_place(cell, dataset), self.root.expanduser() / LABELS_FILE)

    def own_place(self, cell: Cell, dataset: Dataset) -> Path:
        """Return the array of the images."""
        return self.root.expanduser() / f"{dataset.folder_of(cell.corruption)}.npy"


@dataclass(frozen=True, kw_only=True)
class NpyImages(SpilledImages):
    """A source of `<corruption>.npy` files, uint8 (5 n, H, W, 3) with n rows per severity, and `labels.npy`, (5 n,).

    The row within the severity names an image, so a test image has the same name in every cell.
    """

    root: Path
    """Folder of the files, or an uncompressed tar of them."""
    cells: tuple[Cell, ...]
    class_names_by_label: tuple[str, ...] = ()
    """Class names in the order of their labels; if empty, the names are the labels, zero-padded to sort as numbers."""
    severities: tuple[int, ...] = (1, 2, 3, 4, 5)
    """Severities in the order of their rows."""
    file_names: Mapping[str, str] = field(default_factory=dict)
    """Files of corruptions that are not named `<corruption>.npy`."""
    expected_md5: str | None = None
    """Expected md5 of a tar; compared once, before the first cell is prepared."""
    progress: Reporter = field(default=quiet_reporter, repr=False, compare=False)
    """Reports the MiB read while the md5 of a tar is computed."""
    _packed: dict[str, ArrayPlace] = field(default_factory=dict, init=False, repr=False, compare=False)
    _compared: list[str] = field(default_factory=list, init=False, repr=False, compare=False)
    """The md5 of the tar, once it has been compared."""

    @property
    def origin(self) -> Path:
        """The folder or archive of the images."""
        return self.root

    def class_names(self) -> tuple[str, ...]:
        """Return the class names in the order of their labels, which need not be alphabetical."""
        labels_path = self.place(LABELS_FILE)
        return self._names_for(_labels(labels_path), labels_path)

    def version(self, cell: Cell) -> str:
        """Return a digest of the cell's files, severities and classes.

        The digest covers the name, size and modification time of each file, and the place of the array in it.

        Raises:
            ImagesError: a file is missing.
        """
        digest = hashlib.sha256(repr((cell.key, self.severities, self.class_names_by_label)).encode())
        for place in (self.place(self._file_name(cell)), self.place(LABELS_FILE)):
            path = place.path
            try:
                status = path.stat()
            except OSError as error:
                raise _unreadable(place, error.strerror) from error
            facts = (path.name, status.st_size, status.st_mtime_ns, place.member, place.begins_at)
            digest.update(f"{facts}\n".encode())
        return digest.hexdigest()

    def has_cell(self, cell: Cell) -> bool:
        """Return whether the array of *cell* exists."""
        name = self._file_name(cell)
        return name in self._members() if self.root.is_file() else (self.root / name).exists()

    def shifts(self) -> tuple[str, ...]:
        """Return the names of the arrays of images, without `.npy`."""
        names = self._members() if self.root.is_file() else [path.name for path in self.root.glob("[!.]*.npy")]
        return tuple(sorted(name.removesuffix(".npy") for name in names if name != LABELS_FILE))

    def _file_name(self, cell: Cell) -> str:
        return self.file_names.get(cell.corruption, f"{cell.corruption}.npy")

    def place(self, name: str) -> ArrayPlace:
        """Return the place of the array file *name*."""
        if not self.root.is_file():
            return ArrayPlace(self.root / name)
        if name not in self._members():
            some = ", ".join(list(self._members())[:3]) or "no array"
            raise ImagesError(
                f"{self.root} contains {some} but not {name}; expected both: use the archive that contains it"
            )
        return self._members()[name]

    def _members(self) -> Mapping[str, ArrayPlace]:
        if not self._packed:
            self._packed.update(find_packed_arrays(self.root))
        return self._packed

    def _compare_md5(self) -> None:
        if self.expected_md5 and not self._compared:
            find_packed_arrays(self.root, expected_md5=self.expected_md5, progress=self.progress)
            self._compared.append(self.expected_md5)

    def spill_cells(self, cells: Sequence[Cell], spill: SpillFolder) -> dict[Cell, Listing]:
        """Write the images of *cells* into files of *spill* as PNG, after comparing the md5 of a tar."""
        self._compare_md5()
        return {cell: self._spill_cell(cell, spill.file(cell)) for cell in cells}

    def _spill_cell(self, cell: Cell, spill: SpillFile) -> Listing:
        images_path, labels_path = self.place(self._file_name(cell)), self.place(LABELS_FILE)
        images, labels = read_images(images_path, len(self.severities)), _labels(labels_path)
        _require_as_many(labels, labels_path, images, images_path)
        names = self._names_for(labels, labels_path)
        self._require_one_severity(labels, labels_path)
        rows = _rows(cell, self.severities, len(images))
        for row, (image, label) in enumerate(zip(images[rows], labels[rows], strict=True)):
            spill.append(names[label], f"{row:05d}.png", encode_png(Image.fromarray(np.ascontiguousarray(image))))
        return Listing(cell=cell, root=images_path.path, images=spill.flush_images())

    def _require_one_severity(self, labels: npt.NDArray[np.integer[Any]], path: ArrayPlace) -> None:
        """Refuse labels that repeat as for several severities if the dataset has only one."""
        if len(self.severities) > 1 or self.severities == (0,):
            return
        num_repeats = _num_repeats(labels)
        if 1 < num_repeats <= _MAX_REPEATS:
            raise ImagesError(
                f"{path} repeats the same {len(labels) // num_repeats} labels {num_repeats} times, as {num_repeats} "
                f"severities would, but the dataset has only severity {self.severities[0]}; expected only images with "
                f"severity {self.severities[0]}: list all severities of the arrays in the dataset, and choose some "
                "under `severities` of the benchmark"
            )

    def _names_for(self, labels: npt.NDArray[np.integer[Any]], path: ArrayPlace) -> tuple[str, ...]:
        """Return the class name of each label, after checking the *labels* of *path* against the names."""
        # A damaged label can be any number; there are never more classes than labels.
        names = self.class_names_by_label or number_names(max(1, min(int(labels.max()) + 1, len(labels))))
        wrong = np.flatnonzero((labels < 0) | (labels >= len(names)))
        if wrong.size:
            raise ImagesError(
                f"{path} has the label {labels[wrong[0]]} in row {wrong[0]} ({wrong.size} such rows), but there are "
                f"{len(names)} class names; expected 0 to {len(names) - 1}: name every class, in label order"
            )
        if not self.class_names_by_label:
            found = set(np.unique(labels).tolist())
            require_zero_based_labels(found, where=path, otherwise="if they count from 1, subtract 1 from each")
        if twice := find_duplicates(names):
            raise ImagesError(
                f"The class name {twice[0]!r} for {self.root} occurs more than once; expected a different name for "
                f"each label: correct the {len(names)} names"
            )
        return names


def open_arrays(root: Path, at: ImagesContext, *, expected_md5: str | None = None) -> NpyImages:
    """Return the images of the arrays in *root*, a folder or a tar."""
    return NpyImages(
        root=root,
        cells=at.cells,
        spill_root=at.spill_root,
        class_names_by_label=at.classes(),
        severities=at.dataset.cell_severities,
        file_names={shift: f"{folder}.npy" for shift, folder in at.dataset.folders.items()},
        expected_md5=expected_md5,
        progress=at.progress,
    )


def survey_arrays(source: ImagesSection, root: Path, place: Place) -> Survey:
    """Return the survey of the arrays in *root*, a folder or a tar."""
    images = NpyImages(root=root, cells=(), spill_root=root)
    names = images.shifts()
    if not names:
        raise ImagesError(
            f"{root} contains only {LABELS_FILE}; expected arrays of images next to it: restore them from the "
            "published archive"
        )
    first = read_images(images.place(f"{names[0]}.npy"), 1)
    labels_path = images.place(LABELS_FILE)
    for name in names:
        path = images.place(f"{name}.npy")
        _require_as_many(_labels(labels_path), labels_path, read_images(path, 1), path)
    levels = _levels(names, len(first), place.sets)
    num_classes, size = len(images.class_names()), (first.shape[1], first.shape[2])
    found = choose_dataset(
        [(name, severity) for name in names for severity in levels],
        replace(place, paths=(*place.paths, root)),
        CellImages(num_images=len(first) // len(levels), num_classes=num_classes, size=size),
    )
    return Survey(
        source=source,
        dataset=found.dataset,
        corruptions=found.corruptions,
        severities=found.dataset.cell_severities,
        num_classes=num_classes,
        image_size=size,
        remarks=found.remarks,
    )


def read_images(path: ArrayPlace, num_severities: int) -> npt.NDArray[np.uint8]:
    """Map the images of one corruption, uint8 (num_severities n, H, W, 3), into memory."""
    images = _map_array(path)
    if images.dtype != np.uint8 or images.ndim != 4 or images.shape[3] != 3 or len(images) % num_severities:
        raise ImagesError(
            f"{path} has shape {images.shape} and dtype {images.dtype}; expected uint8 RGB images of shape "
            f"({num_severities} n, H, W, 3), starting with the n images of the first severity: restore it from the "
            "published archive"
        )
    return images


def _require_as_many(
    labels: npt.NDArray[np.integer[Any]], labels_path: ArrayPlace, images: npt.NDArray[np.uint8], path: ArrayPlace
) -> None:
    if len(images) != len(labels):
        raise ImagesError(
            f"{labels_path} has {len(labels)} labels, but {path} has {len(images)} images; expected one label per "
            "image: restore both files from the same archive"
        )


def _labels(path: ArrayPlace) -> npt.NDArray[np.integer[Any]]:
    labels = _map_array(path)
    if not np.issubdtype(labels.dtype, np.integer) or labels.ndim != 1:
        raise ImagesError(
            f"{path} has shape {labels.shape} and dtype {labels.dtype}; expected one integer label per image: restore "
            "it from the published archive"
        )
    return labels


def _map_array(path: ArrayPlace) -> npt.NDArray[Any]:
    """Map the array file *path* into memory; unlike `numpy.load`, this never unpickles or opens an archive."""
    try:
        with path.path.open("rb") as file:
            file.seek(path.begins_at)
            header = read_array_header(file.read(MAX_START_BYTES))
            _require_values(path.size_bytes - header.offset, header)
            order: Literal["F", "C"] = "F" if header.is_fortran else "C"
            values: npt.NDArray[Any] = np.memmap(
                file, header.dtype, "r", offset=path.begins_at + header.offset, shape=header.shape, order=order
            )
            return values
    except (OSError, ValueError) as error:
        raise _unreadable(path, error) from error


def _require_values(found_bytes: int, header: ArrayHeader) -> None:
    if found_bytes != header.size_bytes or not found_bytes:
        raise ValueError(
            f"{found_bytes} bytes of values, but {header.dtype} of shape {header.shape} takes {header.size_bytes}"
        )


def _unreadable(path: ArrayPlace, reason: object) -> ImagesError:
    return ImagesError(
        f"{path} cannot be read as an array ({reason}); expected non-empty arrays of numbers, `<corruption>.npy` and "
        f"{LABELS_FILE}, in one folder: point root at the unpacked archive"
    )


def _num_repeats(labels: npt.NDArray[np.integer[Any]]) -> int:
    """Return the number of times that *labels* repeat one sequence; 1 if they do not repeat."""
    counts = (count for count in range(len(labels), 1, -1) if len(labels) % count == 0)
    return next((count for count in counts if not np.ptp(labels.reshape(count, -1), axis=0).any()), 1)


def _rows(cell: Cell, severities: Sequence[int], num_rows: int) -> slice:
    if cell.severity not in severities:
        raise ImagesError(
            f"{cell.key} has severity {cell.severity}, which the arrays do not contain; expected one of "
            f"{', '.join(map(str, severities))}: leave it out, or use another kind of images"
        )
    num_images, place = num_rows // len(severities), severities.index(cell.severity)
    return slice(place * num_images, (place + 1) * num_images)


def _folder_of_arrays(root: Path) -> Path | None:
    """Return *root* or the only folder in it, whichever has `labels.npy`; None if neither has."""
    inner = folders_in(root)
    folders = (root, *(inner if len(inner) == 1 else ()))
    return next((folder for folder in folders if (folder / LABELS_FILE).exists()), None)


def _levels(names: Sequence[str], num_rows: int, sets: Sequence[Dataset]) -> tuple[int, ...]:
    """Return the severities in arrays of *num_rows*: from a dataset with all *names*, or five if *num_rows* fits."""
    known = [each.cell_severities for each in sets if all(is_shift(name, [each]) for name in names)]
    return next((each for each in (*known, (1, 2, 3, 4, 5)) if num_rows % len(each) == 0), (0,))
