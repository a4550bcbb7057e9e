"""Temporary files of many images each, for sources whose images lie nowhere as they are."""

import contextlib
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

from tta_pipeline.errors import SourceError
from tta_pipeline.files import temporary_folder
from tta_pipeline.partitions import Cell
from tta_pipeline.sources.listing import Listing, SourceImage

_BUFFER_BYTES = 2**18


class SpillFile:
    """One file with images one after the other, each of them a slice."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._images: list[SourceImage] = []
        self._end = 0
        with self._writing():
            self._file = path.open("xb", buffering=_BUFFER_BYTES)

    def append(self, class_name: str, file_name: str, data: bytes) -> None:
        """Write one image behind the others.

        Raises:
            SourceError: the disk is full or not writable.
        """
        with self._writing():
            self._file.write(data)
        # One string for the path of all images: there are millions.
        image = SourceImage(class_name, file_name, os.fspath(self.path), len(data), None, self._end)
        self._images.append(image)
        self._end += len(data)

    def images(self) -> tuple[SourceImage, ...]:
        """Return the images written so far, sorted by name; their bytes can be read from now on.

        Raises:
            SourceError: the disk is full or not writable.
        """
        with self._writing():
            self._file.flush()
        return tuple(sorted(self._images, key=lambda image: image.name))

    def close(self) -> None:
        """Close the file; what cannot be written any more is lost."""
        with contextlib.suppress(OSError):
            self._file.close()

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            free = shutil.disk_usage(self.path.parent).free
            raise SourceError(
                f"{self.path} cannot be written ({error.strerror}) after {self._end / 2**20:,.1f} MiB, and "
                f"{free / 2**20:,.1f} MiB are free there; expected room for the images of every cell of the run: "
                "free some, or convert fewer cells at once"
            ) from error


class SpillFolder:
    """The spill files of one preparation, a file for each cell."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._files: dict[Cell, SpillFile] = {}

    def file(self, cell: Cell) -> SpillFile:
        """Return the file of *cell*, created at the first call."""
        if cell not in self._files:
            self._files[cell] = SpillFile(self.path / f"{cell.corruption}-{cell.severity}")
        return self._files[cell]

    def images(self, cell: Cell) -> tuple[SourceImage, ...]:
        """Return the images in the file of *cell*, sorted by name; none if there is no such file."""
        return self._files[cell].images() if cell in self._files else ()

    def close(self) -> None:
        """Close every file."""
        for file in self._files.values():
            file.close()


@contextlib.contextmanager
def spill_folder(root: Path) -> Iterator[SpillFolder]:
    """Yield a folder of spill files below *root*, which is removed, files and all, when the block ends.

    What a killed process left behind is removed by the next call for the same *root*.
    """
    with temporary_folder(root / "spill") as path:
        spill = SpillFolder(path)
        try:
            yield spill
        finally:
            spill.close()


@contextlib.contextmanager
def offered(listings: Mapping[Cell, Listing], *, to: dict[Cell, Listing]) -> Iterator[None]:
    """Add *listings* to those that a source has prepared, until the block ends."""
    to.update(listings)
    try:
        yield
    finally:
        for cell in listings:
            to.pop(cell, None)


def prepared_listing(listings: Mapping[Cell, Listing], cell: Cell, *, root: Path) -> Listing:
    """Return the prepared listing of *cell*.

    Raises:
        SourceError: *cell* is not prepared.
    """
    if cell not in listings:
        prepared = ", ".join(other.key for other in listings) or "none"
        raise SourceError(
            f"{cell.key} of {root} is not prepared (prepared: {prepared}); expected a listing to be asked for inside "
            "prepared(cells) with its cell among them"
        )
    return listings[cell]
