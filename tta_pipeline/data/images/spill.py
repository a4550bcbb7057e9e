"""Temporary files with many images each, for sources that must convert or unpack their images first."""

import contextlib
import shutil
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from tta_pipeline.data.images.listing import Listing
from tta_pipeline.data.images.slices import Slices
from tta_pipeline.domain.cells import Cell
from tta_pipeline.errors import ImagesError
from tta_pipeline.util.files import temporary_folder

_BUFFER_BYTES = 2**18
Prepared = TypeVar("Prepared")


class SpillFile:
    """One file of consecutive images; each image is a slice of it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._images = Slices(path, modified_ns=None)
        self._end = 0
        with self._writing():
            self._file = path.open("xb", buffering=_BUFFER_BYTES)

    def append(self, class_name: str, file_name: str, data: bytes) -> None:
        """Append one image."""
        with self._writing():
            self._file.write(data)
        self._images.append(class_name, file_name, size_bytes=len(data), offset=self._end)
        self._end += len(data)

    def flush_images(self) -> Slices:
        """Flush the file and return the images written so far."""
        with self._writing():
            self._file.flush()
        return self._images

    def close(self) -> None:
        """Close the file; buffered data that cannot be written is lost."""
        with contextlib.suppress(OSError):
            self._file.close()

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            free = shutil.disk_usage(self.path.parent).free
            raise ImagesError(
                f"{self.path} cannot be written ({error.strerror}) after {self._end / 2**20:,.1f} MiB, and only "
                f"{free / 2**20:,.1f} MiB are free; expected space for the images of all cells in this run: free some "
                "space, or convert fewer cells at once"
            ) from error


class SpillFolder:
    """The spill files of one preparation, one file for each cell."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._files: dict[Cell, SpillFile] = {}

    def file(self, cell: Cell) -> SpillFile:
        """Return the file of *cell*, created on the first call."""
        if cell not in self._files:
            self._files[cell] = SpillFile(self.path / f"{cell.corruption}-{cell.severity}")
        return self._files[cell]

    def images(self, cell: Cell) -> Slices | None:
        """Return the images in the file of *cell*, None if there is no such file."""
        return self._files[cell].flush_images() if cell in self._files else None

    def close(self) -> None:
        """Close every file."""
        for file in self._files.values():
            file.close()


@contextlib.contextmanager
def spill_folder(root: Path) -> Iterator[SpillFolder]:
    """Yield a folder of spill files under *root*, and remove it with its files when the block ends.

    The next call for the same *root* removes the leftovers of a killed process.
    """
    with temporary_folder(root / "spill") as path:
        spill = SpillFolder(path)
        try:
            yield spill
        finally:
            spill.close()


@contextlib.contextmanager
def offered(prepared: Mapping[Cell, Prepared], *, to: dict[Cell, Prepared]) -> Iterator[None]:
    """Add *prepared* to a source's prepared cells until the block ends."""
    to.update(prepared)
    try:
        yield
    finally:
        for cell in prepared:
            to.pop(cell, None)


def get_prepared(every: Mapping[Cell, Prepared], cell: Cell, *, where: object) -> Prepared:
    """Return the entry of *cell* in *every*, the prepared cells of the source *where*."""
    if cell not in every:
        prepared = ", ".join(other.key for other in every) or "none"
        raise ImagesError(
            f"{cell.key} of {where} is not prepared (prepared: {prepared}); expected a listing to be requested inside "
            "prepared(cells) with its cell among them"
        )
    return every[cell]


@dataclass(frozen=True, kw_only=True)
class SpilledImages(ABC):
    """The part of a source that converts the images of each cell into a temporary file, before they become shards."""

    spill_root: Path
    """Folder for the temporary files with the images of prepared cells."""
    _listings: dict[Cell, Listing] = field(default_factory=dict, init=False, repr=False, compare=False)

    @property
    @abstractmethod
    def origin(self) -> object:
        """Where the images come from, for errors."""

    @abstractmethod
    def spill_cells(self, cells: Sequence[Cell], spill: SpillFolder) -> dict[Cell, Listing]:
        """Write the images of *cells* into files of *spill*, and return their listings.

        Anything that the cells share, such as worker processes, is created once.

        Raises:
            ImagesError: the images are missing or damaged, or a label has no class.
        """

    def together(self, cell: Cell, among: Sequence[Cell]) -> tuple[Cell, ...]:  # noqa: ARG002 - each lies by itself
        """Return *cell* alone."""
        return (cell,)

    @contextlib.contextmanager
    def prepared(self, cells: Sequence[Cell]) -> Iterator[None]:
        """Write the images of *cells* under the spill root, and remove them when the block ends."""
        with spill_folder(self.spill_root) as spill, offered(self.spill_cells(cells, spill), to=self._listings):
            yield

    def listing(self, cell: Cell) -> Listing:
        """Return the images of *cell*, sorted by name."""
        return get_prepared(self._listings, cell, where=self.origin)
