"""Class folders that are named by the numbers of the classes, from 0."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace

from tta_pipeline.errors import SourceError
from tta_pipeline.garbage import uncollected
from tta_pipeline.partitions import Cell
from tta_pipeline.sources.kinds.section import SourceContext
from tta_pipeline.sources.listing import Listing, Source


@dataclass(frozen=True, kw_only=True)
class NumberedClasses:
    """*source*, with the class of that number in the place of each class folder that is a number."""

    source: Source
    classes: Callable[[], tuple[str, ...]]
    """Gives the class names in label order; nothing if they are not known."""
    must: bool
    """Whether every class folder is a number; else they are only where all are and none of them is a class."""

    def class_names(self) -> tuple[str, ...]:
        """Return the classes."""
        return (self.must and self.classes()) or self.source.class_names()

    def version(self, cell: Cell) -> str:
        """Return the version of *cell*."""
        return self.source.version(cell)

    def together(self, cell: Cell, among: Sequence[Cell]) -> tuple[Cell, ...]:
        """Return the cells *among* these that are best prepared with *cell*."""
        return self.source.together(cell, among)

    def prepared(self, cells: Sequence[Cell]) -> AbstractContextManager[None]:
        """Prepare *cells*."""
        return self.source.prepared(cells)

    @uncollected()
    def listing(self, cell: Cell) -> Listing:
        """Return the images of *cell*, with the names of their classes, sorted by name.

        Raises:
            SourceError: a class folder is no number of a class.
        """
        listing = self.source.listing(cell)
        classes = self.classes()
        if not classes:
            return listing
        folders = {image.class_name for image in listing.images}
        if not self.must and not (folders.isdisjoint(classes) and all(map(_is_number, folders))):
            return listing
        names = {folder: _class_of(folder, classes, listing) for folder in folders}
        renamed = (image._replace(class_name=names[image.class_name]) for image in listing.images)
        return replace(listing, images=tuple(sorted(renamed, key=lambda image: image.name)))


def numbered(source: Source, at: SourceContext) -> Source:
    """Return *source*, with class names if the shift set's class folders are numbers."""
    if at.shift_set.class_folders == "names":
        return source
    return NumberedClasses(source=source, classes=at.classes, must=True)


def _is_number(folder: str) -> bool:
    return folder.isascii() and folder.isdecimal()


def _class_of(folder: str, classes: Sequence[str], listing: Listing) -> str:
    if not _is_number(folder) or int(folder) >= len(classes):
        raise SourceError(
            f"{listing.root} has the class folder {folder!r}; expected numbers from 0 to {len(classes) - 1}, as the "
            "classes count: give the class map whose numbers they are, or rename the folder"
        )
    return classes[int(folder)]
