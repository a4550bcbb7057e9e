"""Conversion of class numbers, from 0, to the names in the class map."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from tta_pipeline.data.images.images_section import ImagesContext
from tta_pipeline.data.images.listing import ImagesAround, Listing, Source
from tta_pipeline.domain.cells import Cell
from tta_pipeline.errors import ImagesError
from tta_pipeline.util.garbage_collection import gc_paused


@dataclass(frozen=True, kw_only=True)
class NumberedClasses(ImagesAround):
    """*source* with class names instead of class folders that are numbers."""

    classes: Callable[[], tuple[str, ...]]
    """Returns the class names of the class map in label order; nothing if there is none."""
    must: bool
    """Whether every class folder must be a number; if not, folders count as numbers only if all are digits and none is
    the name of a class."""

    def class_names(self) -> tuple[str, ...]:
        """Return the classes."""
        return (self.must and self.classes()) or self.source.class_names()

    @gc_paused()
    def listing(self, cell: Cell) -> Listing:
        """Return the images of *cell*, with the names of their classes, sorted by name."""
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


def resolve_class_numbers(source: Source, at: ImagesContext) -> Source:
    """Return *source*, with class names instead of numbers if the dataset's class folders are numbers."""
    if at.dataset.class_folders == "names":
        return source
    return NumberedClasses(source=source, classes=at.classes, must=True)


def number_names(count: int) -> tuple[str, ...]:
    """Return the names of *count* classes that have only labels: the labels themselves, all of one width."""
    width = len(str(max(count - 1, 0)))
    return tuple(f"{number:0{width}d}" for number in range(count))


def _is_number(folder: str) -> bool:
    return folder.isascii() and folder.isdecimal()


def _class_of(folder: str, classes: Sequence[str], listing: Listing) -> str:
    if not _is_number(folder) or int(folder) >= len(classes):
        raise ImagesError(
            f"{listing.root} has the class folder {folder!r}; expected numbers from 0 to {len(classes) - 1}, the "
            "positions in the class map: use the class map that belongs to these numbers, or rename the folder"
        )
    return classes[int(folder)]
