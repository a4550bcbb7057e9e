"""Conversion of class numbers, from 0, and of a data set's own class names to the names in the class map."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from tta_pipeline.data.labels.class_map import label_order
from tta_pipeline.data.sources.listing import Listing, Source, SourceAround
from tta_pipeline.data.sources.source_section import SourceContext
from tta_pipeline.domain.cells import Cell
from tta_pipeline.errors import SourceError
from tta_pipeline.util.garbage_collection import gc_paused
from tta_pipeline.util.identifiers import find_duplicates
from tta_pipeline.util.plurals import count_of
from tta_pipeline.util.short_lists import abbreviate_list


@dataclass(frozen=True, kw_only=True)
class NumberedClasses(SourceAround):
    """*source* with class names in place of class folders that are numbers."""

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


def resolve_class_numbers(source: Source, at: SourceContext) -> Source:
    """Return *source*, with class names in place of numbers if the shift set's class folders are numbers."""
    if at.shift_set.class_folders == "names":
        return source
    return NumberedClasses(source=source, classes=at.classes, must=True)


def map_names_to_classes(
    names: Sequence[str], classes: Sequence[str], *, are_numbers: bool, where: object
) -> Mapping[str, str]:
    """Return the class in the class map for each of *names*, the class names of the data set *where*.

    If all names are numbers, they are positions in *classes* if *are_numbers* is set or none of them is a class.
    Without *classes*, each name is its own class.
    """
    if twice := find_duplicates(names):
        raise SourceError(
            f"{where} names {abbreviate_list(twice)} more than once; expected each class once: rename them there"
        )
    if not classes:
        return {name: name for name in names}
    if all(map(_is_number, names)) and (are_numbers or set(names).isdisjoint(classes)):
        meant = {name: classes[int(name)] for name in names if int(name) < len(classes)}
    else:
        meant = {name: name for name in set(names).intersection(classes)}
    if unknown := [name for name in names if name not in meant]:
        raise SourceError(
            f"{where} names {count_of(len(unknown), 'class')} that the class map of {len(classes)} lacks: "
            f"{abbreviate_list(unknown)}; expected its names, such as {abbreviate_list(classes)}, or numbers from 0 to "
            f"{len(classes) - 1}: give the class map that has these names, or leave class_map out"
        )
    return meant


def name_of_label(label: int, names: Sequence[str], *, where: object) -> str:
    """Return the class of *label*, which is in the file or item *where*, among *names* in label order."""
    if not 0 <= label < len(names):
        raise SourceError(
            f"{where} has the label {label}; expected 0 to {len(names) - 1}, one for each of the {len(names)} classes: "
            "give the class map of these labels"
        )
    return names[label]


def number_names(count: int) -> tuple[str, ...]:
    """Return the names of *count* classes that have only labels: the labels themselves, all of one width."""
    width = len(str(max(count - 1, 0)))
    return tuple(f"{number:0{width}d}" for number in range(count))


def merge_class_names(found: Iterable[tuple[str, ...]]) -> tuple[str, ...]:
    """Return the classes of several parts of a data set: in their common order if there is one, else in label order."""
    orders = set(found)
    return orders.pop() if len(orders) == 1 else label_order({name for order in orders for name in order})


def _is_number(folder: str) -> bool:
    return folder.isascii() and folder.isdecimal()


def _class_of(folder: str, classes: Sequence[str], listing: Listing) -> str:
    if not _is_number(folder) or int(folder) >= len(classes):
        raise SourceError(
            f"{listing.root} has the class folder {folder!r}; expected numbers from 0 to {len(classes) - 1}, the "
            "positions in the class map: give the class map with these numbers, or rename the folder"
        )
    return classes[int(folder)]
