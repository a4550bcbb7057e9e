"""Images in folders, laid out as ImageNet-C is: `<root>/<corruption>/<severity>/<class>/<name>.JPEG`."""

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from tta_pipeline.errors import SourceError
from tta_pipeline.partitions import Cell
from tta_pipeline.sources.listing import Listing, SourceImage, image_at

IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".webp")


@dataclass(frozen=True, kw_only=True, slots=True)
class FolderTree:
    """A source whose cells are folders of class folders."""

    root: Path
    cells: tuple[Cell, ...]
    """The cells that make up the source; only their class folders count for the class map."""
    elsewhere: tuple[tuple[Cell, Path], ...] = ()
    """Cells that lie outside *root*, such as clean images."""

    def folder(self, cell: Cell) -> Path:
        """Return the folder of class folders of *cell*."""
        return dict(self.elsewhere).get(cell, self.root / cell.path)

    def class_names(self) -> tuple[str, ...]:
        """Return the sorted union of the class folders of all cells that exist."""
        folders = (self.folder(cell) for cell in self.cells)
        return tuple(sorted({entry.name for folder in folders if folder.is_dir() for entry in _class_folders(folder)}))

    def version(self, cell: Cell) -> str:
        """Return the digest of the listing of *cell*."""
        return self.listing(cell).version

    def prepared(self, cells: Sequence[Cell]) -> AbstractContextManager[None]:  # noqa: ARG002 - files lie there already
        """Do nothing: every listing is available at any time."""
        return nullcontext()

    def listing(self, cell: Cell) -> Listing:
        """Return the images of *cell*, sorted by name.

        Raises:
            SourceError: the cell's folder is missing or holds no image.
        """
        folder = self.folder(cell)
        if not folder.is_dir():
            raise SourceError(f"{folder} does not exist; expected the class folders of {cell.key}")
        images: list[SourceImage] = []
        strays = [Path(entry.path) for entry in _entries(folder) if entry.is_file()]
        num_hidden = 0
        for class_folder in _class_folders(folder):
            for entry in _entries(class_folder):
                if entry.name.startswith("."):
                    num_hidden += 1
                elif entry.is_file() and entry.name.lower().endswith(IMAGE_SUFFIXES):
                    images.append(image_at(class_folder.name, entry))
                else:
                    strays.append(Path(entry.path))
        if not images:
            raise SourceError(
                f"0 images under {folder}; expected class folders with files ending in {', '.join(IMAGE_SUFFIXES)}"
            )
        images.sort()
        return Listing(cell=cell, root=folder, images=tuple(images), num_hidden=num_hidden, strays=tuple(strays))


def _entries(folder: Path | os.DirEntry[str]) -> Iterable[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except OSError as error:
        raise SourceError(
            f"{os.fspath(folder)} cannot be listed ({error.strerror}); expected a readable folder"
        ) from error


def _class_folders(folder: Path) -> Iterator[os.DirEntry[str]]:
    return (entry for entry in _entries(folder) if entry.is_dir() and not entry.name.startswith("."))
