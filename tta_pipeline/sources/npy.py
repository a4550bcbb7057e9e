"""Images in NumPy arrays, as CIFAR-10-C and CIFAR-100-C are published: a file per corruption, severity by severity."""

import contextlib
import hashlib
import io
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from PIL import Image

from tta_pipeline.errors import SourceError
from tta_pipeline.npy_format import MAX_START_BYTES, ArrayHeader, read_array_header
from tta_pipeline.partitions import Cell
from tta_pipeline.sources.listing import Listing
from tta_pipeline.sources.spill import SpillFile, offered, prepared_for, spill_folder

LABELS_FILE = "labels.npy"
_PNG_LEVEL = 1
"""PNG compression level: all are lossless; a higher one takes ten times as long and saves a few per cent."""


@dataclass(frozen=True, kw_only=True, slots=True)
class NpyImages:
    """A source of `<corruption>.npy` files, uint8 (5 n, H, W, 3) with n rows per severity, and `labels.npy`, (5 n,).

    The row within the severity names an image, so a test image has the same name in every cell.
    """

    root: Path
    cells: tuple[Cell, ...]
    class_names_by_label: tuple[str, ...] = ()
    """Class names in the order of their labels; if empty, the labels, zero-padded so that they sort as numbers."""
    severities: tuple[int, ...] = (1, 2, 3, 4, 5)
    """Severities in the order of their rows."""
    file_names: Mapping[str, str] = field(default_factory=dict)
    """Files of corruptions that are not `<corruption>.npy`."""
    spill_root: Path
    """Folder for the images of prepared cells, as PNG files, while they are needed."""
    _listings: dict[Cell, Listing] = field(default_factory=dict, init=False, repr=False, compare=False)

    def class_names(self) -> tuple[str, ...]:
        """Return the class names in the order of their labels, which need not be alphabetical.

        Raises:
            SourceError: the labels are missing or are not labels.
        """
        labels_path = self.root / LABELS_FILE
        return self._names_for(_labels(labels_path), labels_path)

    def version(self, cell: Cell) -> str:
        """Return a digest of name, size and modification time of the files that *cell* comes from.

        Raises:
            SourceError: one of them is missing.
        """
        digest = hashlib.sha256(repr((cell.key, self.class_names_by_label)).encode())
        for path in (self._images_path(cell), self.root / LABELS_FILE):
            try:
                status = path.stat()
            except OSError as error:
                raise _unreadable(path, error.strerror) from error
            digest.update(f"{path.name}\0{status.st_size}\0{status.st_mtime_ns}\n".encode())
        return digest.hexdigest()

    def together(self, cell: Cell, among: Sequence[Cell]) -> tuple[Cell, ...]:  # noqa: ARG002 - each lies by itself
        """Return *cell* alone."""
        return (cell,)

    @contextlib.contextmanager
    def prepared(self, cells: Sequence[Cell]) -> Iterator[None]:
        """Write the images of *cells* as PNG files below the spill root, and remove them when the block ends.

        Raises:
            SourceError: a file is missing, or the files are not arrays of images and labels that fit together.
        """
        with spill_folder(self.spill_root) as spill:
            listings = {cell: self._spilled(cell, spill.file(cell)) for cell in cells}
            with offered(listings, to=self._listings):
                yield

    def listing(self, cell: Cell) -> Listing:
        """Return the images of *cell*, sorted by name.

        Raises:
            SourceError: *cell* is not prepared.
        """
        return prepared_for(self._listings, cell, root=self.root)

    def _images_path(self, cell: Cell) -> Path:
        return self.root / self.file_names.get(cell.corruption, f"{cell.corruption}.npy")

    def _spilled(self, cell: Cell, spill: SpillFile) -> Listing:
        images_path, labels_path = self._images_path(cell), self.root / LABELS_FILE
        images, labels = read_images(images_path, len(self.severities)), _labels(labels_path)
        if len(images) != len(labels):
            raise SourceError(
                f"{labels_path} has {len(labels)} labels and {images_path} {len(images)} images; expected equal "
                "numbers: restore both from one archive"
            )
        names = self._names_for(labels, labels_path)
        rows = _rows(cell, self.severities, len(images))
        for row, (image, label) in enumerate(zip(images[rows], labels[rows], strict=True)):
            spill.append(names[label], f"{row:05d}.png", _png(image))
        return Listing(cell=cell, root=images_path, images=spill.images())

    def _names_for(self, labels: npt.NDArray[np.integer[Any]], path: Path) -> tuple[str, ...]:
        """Return the name of each label, after checking the *labels* of *path* against the names."""
        # A damaged label can be any number; there are never more classes than labels.
        names = self.class_names_by_label or _numbers(max(1, min(int(labels.max()) + 1, len(labels))))
        wrong = np.flatnonzero((labels < 0) | (labels >= len(names)))
        if wrong.size:
            raise SourceError(
                f"{path} has label {labels[wrong[0]]} in row {wrong[0]} ({wrong.size} such rows); expected 0 to "
                f"{len(names) - 1}, one for each of the {len(names)} class names: name every class, in label order"
            )
        if len(set(names)) < len(names):
            repeated = next(name for name in names if names.count(name) > 1)
            raise SourceError(
                f"{self.root} is given the class name {repeated!r} more than once; expected a different name for "
                f"each label: correct the {len(names)} names"
            )
        return names


def read_images(path: Path, num_severities: int = 5) -> npt.NDArray[np.uint8]:
    """Map the images of one corruption, uint8 (num_severities n, H, W, 3), into memory.

    Raises:
        SourceError: *path* is missing or holds something else.
    """
    images = _array(path)
    if images.dtype != np.uint8 or images.ndim != 4 or images.shape[3] != 3 or len(images) % num_severities:
        raise SourceError(
            f"{path} has shape {images.shape} and type {images.dtype}; expected uint8 RGB images of shape "
            f"({num_severities} n, H, W, 3), the n images of the first severity first: restore it "
            "from the published archive"
        )
    return images


def _labels(path: Path) -> npt.NDArray[np.integer[Any]]:
    labels = _array(path)
    if not np.issubdtype(labels.dtype, np.integer) or labels.ndim != 1:
        raise SourceError(
            f"{path} has shape {labels.shape} and type {labels.dtype}; expected one integer label per image: restore "
            "it from the published archive"
        )
    return labels


def _array(path: Path) -> npt.NDArray[Any]:
    """Map the array file *path* into memory; unlike `numpy.load`, this never unpickles or opens an archive."""
    if path.exists() and not path.is_file():  # reading a named pipe would block
        raise _unreadable(path, "it is not a regular file")
    try:
        with path.open("rb") as file:
            header = read_array_header(file.read(MAX_START_BYTES))
            _require_values(os.fstat(file.fileno()).st_size - header.offset, header)
            order: Literal["F", "C"] = "F" if header.is_fortran else "C"
            values: npt.NDArray[Any] = np.memmap(
                file, header.dtype, "r", offset=header.offset, shape=header.shape, order=order
            )
            return values
    except (OSError, ValueError) as error:
        raise _unreadable(path, error) from error


def _require_values(found_bytes: int, header: ArrayHeader) -> None:
    if found_bytes != header.size_bytes or not found_bytes:
        raise ValueError(
            f"{found_bytes} bytes of values, but {header.dtype} of shape {header.shape} takes {header.size_bytes}"
        )


def _unreadable(path: Path, reason: object) -> SourceError:
    return SourceError(
        f"{path} cannot be read as an array ({reason}); expected non-empty arrays of numbers, `<corruption>.npy` and "
        f"{LABELS_FILE}, in one folder: point root at the unpacked archive"
    )


def _rows(cell: Cell, severities: Sequence[int], num_rows: int) -> slice:
    if cell.severity not in severities:
        raise SourceError(
            f"{cell.key} has severity {cell.severity}; expected one of {', '.join(map(str, severities))}, since array "
            "files hold no others: take it from another source"
        )
    num_images, place = num_rows // len(severities), severities.index(cell.severity)
    return slice(place * num_images, (place + 1) * num_images)


def _numbers(count: int) -> tuple[str, ...]:
    width = len(str(count - 1))
    return tuple(f"{number:0{width}d}" for number in range(count))


def _png(image: npt.NDArray[np.uint8]) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(image)).save(buffer, "PNG", compress_level=_PNG_LEVEL)
    return buffer.getvalue()
