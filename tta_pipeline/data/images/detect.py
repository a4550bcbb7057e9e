"""Quick surveys of folders and archives for `new-benchmark`."""

import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from pathlib import Path

from tta_pipeline.data.datasets.dataset import MAX_SEVERITY, RESERVED_SHIFTS, Dataset
from tta_pipeline.data.formats.tar_format import BLOCK_BYTES, FILE_KINDS, read_header
from tta_pipeline.data.image_bytes import read_image_header
from tta_pipeline.data.images.archive_entry import Entry, Members
from tta_pipeline.data.images.archives import is_zip, opened_archive
from tta_pipeline.data.images.choose_dataset import (
    CellImages,
    ChosenDataset,
    FoundCell,
    Place,
    choose_dataset,
    find_whole_set,
    is_shift,
)
from tta_pipeline.data.images.class_folders import WRAPPERS, folders_in, is_hidden
from tta_pipeline.data.images.folder_tree import IMAGE_SUFFIXES, FolderTree, discover_tree, is_image
from tta_pipeline.data.images.shard_files import is_tar_like
from tta_pipeline.data.labels.splits import Split, read_split
from tta_pipeline.domain.cells import CLEAN, Cell
from tta_pipeline.errors import ImagesError
from tta_pipeline.util.short_lists import abbreviate_list

MAX_MEMBERS = 60_000
"""Most members read per archive: more than in a cell of ImageNet-C, so that all its classes are found."""
MAX_S = 10.0
_NUM_PLACES = 256
_FIRST_SIZES = 64
_SIZES_APART = 500
"""Images whose size is read: the first, and then every so many, and the first of each cell."""
_SIZES_OF_A_FOLDER = 8
_MOST_SIZES = 512
_PLACE_BYTES = 2**18  # more than most images have, so that each place includes a header
_MAX_IMAGE_BYTES = 32 * 2**20


@dataclass
class Inspection:
    """Cells, classes and image size, found by the names in archives."""

    place: Place
    counts: Counter[FoundCell] = field(default_factory=Counter)
    """Number of images of each cell whose names were read in turn."""
    is_first_whole: bool = True
    """Whether the names of all images of the first cell were read."""
    classes: set[str] = field(default_factory=set)
    """Classes of the images in a cell."""
    loose_folders: Counter[tuple[str, ...]] = field(default_factory=Counter)
    """Number of images in each folder, named from the outermost, that is in no cell."""
    image_size: tuple[int, int] | None = None
    other_size: tuple[int, int] | None = None
    """Size of an image unlike the first."""
    num_images: int = 0
    _num_cells: int = 0
    """Number of cells at the last image."""
    remarks: list[str] = field(default_factory=list)

    @property
    def cell_images(self) -> CellImages:
        """Known facts about the images of the first cell."""
        return CellImages(
            num_images=next(iter(self.counts.values())) if self.is_first_whole else None,
            num_classes=len(self.classes) if self.is_first_whole else None,
            size=self.other_size or self.image_size,
        )

    @property
    def loose_classes(self) -> set[str]:
        """Classes of the images in no cell."""
        return {folders[-1] for folders in self.loose_folders}

    def count_shifts_without_severities(self) -> None:
        """Take the folders around class folders for shifts if some of them have the same classes."""
        places = {(len(folders), folders[:-2]) for folders in self.loose_folders}
        if len(places) != 1 or len(self.loose_classes) == len(self.loose_folders):  # as animals/cat and things/cup
            return
        for (*_, shift, class_name), count in self.loose_folders.items():
            if shift not in RESERVED_SHIFTS and not shift.isdecimal():
                self.counts[(shift, 0)] += count
                self.classes.add(class_name)

    def add_name(self, name: str, *, num_images: int = 1) -> None:
        """Add the cell and the class in the *name* of a member, one of *num_images* that were not seen before."""
        folder, _, file_name = name.rpartition("/")
        parts = [part for part in folder.split("/") if part and part not in (".", *WRAPPERS)]
        if not is_image(file_name) or not parts or any(map(is_hidden, parts)):
            return
        cell, below = self._cell(parts)
        if cell is None:
            self.loose_folders[tuple(parts)] += num_images
        else:
            self.counts[cell] += num_images
            self.classes.update(below[-1:])

    def add_image(self, entry: Entry, stream: Members, suffixes: tuple[str, ...] = (*IMAGE_SUFFIXES, ".npy")) -> None:
        """Read the size of an image, a file with one of *suffixes*: see `_SIZES_APART`."""
        if entry.link or entry.size_bytes > _MAX_IMAGE_BYTES or not entry.name.lower().endswith(suffixes):
            return
        self.num_images += 1
        is_first_of_cell, self._num_cells = len(self.counts) > self._num_cells, len(self.counts)
        is_sampled = is_first_of_cell or self.num_images <= _FIRST_SIZES or self.num_images % _SIZES_APART == 0
        if self.image_size is None or (is_sampled and self.other_size is None):
            with suppress(ValueError):  # another image will do; sharding reports the damage
                header = read_image_header(stream.read())
                self.add_size((header.height, header.width))

    def add_size(self, size: tuple[int, int]) -> None:
        """Add the size of an image."""
        if self.image_size is None:
            self.image_size = size
        elif size != self.image_size:
            self.other_size = size

    def _cell(self, parts: Sequence[str]) -> tuple[FoundCell | None, Sequence[str]]:
        """Return the cell named by the folders *parts*, with the folders below it."""
        for end in range(len(parts), 1, -1):
            shift, folder = parts[end - 2 : end]
            severity = self.place.severity_of_folder(folder, shift)
            # A number above files is a class, as in ImageNetV2, unless the dataset has that severity.
            if not is_severity(severity) or shift.isdecimal():
                continue
            if parts[end:] or self.place.has(Cell(corruption=shift, severity=int(severity))):
                return (shift, int(severity)), parts[end:]
        for number, part in enumerate(parts[:-1], start=1):
            if found := find_whole_set(part, self.place.sets):
                dataset, shift = found
                return (dataset.folder_of(shift), 0), parts[number:]
        return None, ()


def is_severity(name: str) -> bool:
    """Return whether a folder with this *name* may be a severity."""
    return name.isascii() and name.isdecimal() and str(int(name)) == name and 0 < int(name) <= MAX_SEVERITY


def inspect_archive(path: Path, seen: Inspection) -> None:
    """Add the first members of *path* to *seen*; if there are more members, also sample headers across the archive."""
    has_all_names = is_zip(path)  # in its central directory
    until = time.monotonic() + MAX_S
    with opened_archive(path) as stream:
        for number, entry in enumerate(stream):
            if not has_all_names and (number == MAX_MEMBERS or time.monotonic() > until):
                seen.is_first_whole = len(seen.counts) > 1
                seen.remarks.append(
                    f"Only the first {number:,} files of {path.name} were read{_sample_headers(path, seen)}: there "
                    "may be more cells and classes."
                )
                return
            seen.add_name(entry.name)
            if entry.name.rpartition("/")[0]:
                seen.add_image(entry, stream)


def find_cells_under(
    place: Place, look_into: Callable[[Path], CellImages]
) -> tuple[FolderTree, ChosenDataset, int] | None:
    """Return the cells in the folder of *place*, their dataset, and the depth of their folders.

    Return None if there are no cells. *look_into* returns the known facts about the images in a cell's folder.
    """
    assert place.folder is not None
    for depth in (2, 3):
        tree = _tree(place, depth)
        if tree is not None:
            # The cells of one archive are in a folder with its name; below this folder the depth is 2.
            groups = {tree.folder(cell).parents[1] for cell in tree.cells}
            if len(groups) == 1:
                root = groups.pop()
                return _of_a_set(replace(tree, root=root), replace(place, paths=(*place.paths, root)), 2, look_into)
            return _of_a_set(tree, place, depth, look_into)
    return _whole(place, look_into) or _without_severities(place, look_into)


def look_into_class_folders(folder: Path) -> CellImages:
    """Return the known facts about the images in the class folders in *folder*."""
    size, other_size = read_image_sizes(folder)
    tree = discover_tree(folder, class_dir_depth=0)
    return CellImages(
        num_images=len(tree.listing(CLEAN).images),
        num_classes=len(tree.class_names()),
        size=other_size or size,
    )


def find_split_set(folder: Path, place: Place) -> tuple[Dataset, Split] | None:
    """Return the known dataset whose split is in *folder*, with the split; None if there is none."""
    for each in place.sets:
        if each.split and (folder / each.split).is_file():
            names = folder / each.split_classes if each.split_classes else None
            return each, read_split(folder / each.split, names)
    return None


def count_classes(tree: FolderTree) -> tuple[int, list[str]]:
    """Return the number of classes, from one severity of each corruption, with remarks on differences."""
    first_cells = {cell.corruption: cell for cell in sorted(tree.cells, reverse=True)}
    counts = {name: len(replace(tree, cells=(cell,)).class_names()) for name, cell in first_cells.items()}
    usual = sorted(counts.values())[len(counts) // 2]
    odd = [f"{name} has {count:,}" for name, count in counts.items() if count != usual]
    advice = (
        f"Most corruptions have {usual:,} class folders, but {', '.join(odd)}: give class_map a file with the classes, "
        "and add `extra_classes: skip` to shards if there are folders of other classes."
    )
    return usual, [advice] if odd else []


def find_first_file(folder: Path) -> Path | None:
    """Return the first image file under *folder*; None if there is none."""
    for parent, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not is_hidden(name))
        for name in sorted(names):
            if is_image(name):
                return Path(parent, name)
    return None


def read_image_sizes(folder: Path, *others: Path) -> tuple[tuple[int, int] | None, tuple[int, int] | None]:
    """Return height and width, in pixels, of the first image under *folder*, and of an image of another size, if any.

    Some images of each class under *folder* are read, and the first one under *others*, until their sizes differ.
    """
    first = find_first_file(folder)
    if first is None:
        return None, None
    size = read_image_size(first)
    paths = chain(islice(_some_images(folder), _MOST_SIZES), filter(None, map(find_first_file, others)))
    return size, next((other for path in paths if (other := _size_or_none(path)) not in (None, size)), None)


def _some_images(folder: Path) -> Iterator[Path]:
    """Yield a few images of each folder under *folder*, from its beginning, middle and end."""
    for parent, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not is_hidden(name))
        images = sorted(filter(is_image, names))
        step = max(1, len(images) // _SIZES_OF_A_FOLDER)
        yield from (Path(parent, name) for name in images[::step])


def _size_or_none(path: Path) -> tuple[int, int] | None:
    """Return height and width of the image *path*; None if it is damaged, which sharding reports."""
    try:
        return read_image_size(path)
    except ImagesError:
        return None


def read_image_size(path: Path) -> tuple[int, int]:
    """Return height and width of the image *path* in pixels."""
    try:
        header = read_image_header(path.read_bytes())
    except (OSError, ValueError) as error:
        raise ImagesError(f"{path} cannot be decoded: {error}; expected an intact image: restore the file") from error
    return header.height, header.width


def _tree(place: Place, depth: int) -> FolderTree | None:
    """Return the cells *depth* levels under the folder of *place*; None if none has a severity."""
    assert place.folder is not None
    try:
        tree = discover_tree(place.folder, class_dir_depth=depth, severities=place.severity_of_folder)
    except ImagesError:
        return None
    numbered = [cell for cell in tree.cells if is_severity(str(cell.severity)) and not cell.corruption.isdecimal()]
    # A number above files is a class, as in ImageNetV2, unless a set has that severity.
    cells = tuple(cell for cell in numbered if place.has(cell) or _has_folders_or_shards(tree.folder(cell)))
    return replace(tree, cells=cells) if cells else None


def _has_folders_or_shards(folder: Path) -> bool:
    with os.scandir(folder) as entries:
        return any(entry.is_dir() or is_tar_like(entry.name) for entry in entries)


def _of_a_set(
    tree: FolderTree, place: Place, depth: int, look_into: Callable[[Path], CellImages]
) -> tuple[FolderTree, ChosenDataset, int]:
    images = look_into(tree.folder(tree.cells[0]))
    found = choose_dataset(((cell.corruption, cell.severity) for cell in tree.cells), place, images)
    folders = {
        Cell(corruption=found.dataset.shift_of_folder(cell.corruption), severity=cell.severity): path
        for cell, path in tree.elsewhere
    }
    if others := _beside_cells(tree):
        remark = f"Left out, as they are no severities from 1 to {MAX_SEVERITY} of a shift: {abbreviate_list(others)}."
        found = replace(found, remarks=(*found.remarks, remark))
    return replace(tree, cells=found.cells, elsewhere=tuple(folders.items())), found, depth


def _beside_cells(tree: FolderTree) -> list[str]:
    """Return the folders of shifts without severities, and the folders next to the severities of others."""
    shifts = {tree.folder(cell).parent for cell in tree.cells}
    others = [path for cell, path in tree.elsewhere if cell not in tree.cells]
    names = (f"{path.parent.name}/{path.name}" if path.parent in shifts else path.parent.name for path in others)
    return list(dict.fromkeys(names))


def _whole(place: Place, look_into: Callable[[Path], CellImages]) -> tuple[FolderTree, ChosenDataset, int] | None:
    """Return the cells of a dataset without severities; the folder belongs to the dataset or to one of its shifts."""
    root = place.paths[0]
    inside = folders_in(root)
    inner = [path for path in inside if find_whole_set(path.name, place.sets)]
    if not inner and find_whole_set(root.name, place.sets):
        inner = [root]
    if not inner:
        return None
    names = {path: found for path in inner if (found := find_whole_set(path.name, place.sets))}
    dataset = next(iter(names.values()))[0]
    folders = {Cell(corruption=shift, severity=0): path for path, (each, shift) in names.items() if each == dataset}
    is_one_of_several = inner == [root] and len(dataset.names) > 1
    tree_root = root.parent if is_one_of_several else root
    images = look_into(next(iter(folders.values())))
    chosen = choose_dataset([(cell.corruption, 0) for cell in folders], replace(place, sets=(dataset,)), images)
    if others := [path.name for path in inside if inner != [root] and path not in folders.values()]:
        remark = f"Left out, as they belong to no shift of {dataset.name}: {abbreviate_list(others)}."
        chosen = replace(chosen, remarks=(*chosen.remarks, remark))
    return FolderTree(root=tree_root, cells=chosen.cells, elsewhere=tuple(folders.items())), chosen, 2


def _without_severities(
    place: Place, look_into: Callable[[Path], CellImages]
) -> tuple[FolderTree, ChosenDataset, int] | None:
    """Return the cells of a user's dataset in `<root>/<shift>/<class>/<image>`."""
    root = place.paths[0]
    names = [path.name for path in folders_in(root)]
    first = find_first_file(root)
    if first is None or len(first.relative_to(root).parts) != 3 or is_shift(root.name, place.sets):
        return None
    if any(name.isdecimal() or name in WRAPPERS for name in names):  # classes by number, or the parts of one dataset
        return None
    classes = [path.name for name in names for path in folders_in(root / name)]
    if len(names) > 1 and len(set(classes)) == len(classes):  # as animals/cat and things/cup
        return None
    found = [(name, 0) for name in names if name not in RESERVED_SHIFTS]
    chosen = choose_dataset(found, place, look_into(first.parents[1]))
    elsewhere = tuple((cell, root / cell.corruption) for cell in chosen.cells)
    return FolderTree(root=root, cells=chosen.cells, elsewhere=elsewhere), chosen, 2


def _sample_headers(path: Path, seen: Inspection) -> str:
    """Sample headers across an uncompressed tar, and return the words for the remark."""
    size_bytes = path.stat().st_size
    descriptor = os.open(path, os.O_RDONLY)
    try:
        if os.pread(descriptor, 2, 0) == b"\x1f\x8b":
            return ""
        for number in range(_NUM_PLACES):
            start = size_bytes * number // _NUM_PLACES // BLOCK_BYTES * BLOCK_BYTES
            _add_headers(os.pread(descriptor, _PLACE_BYTES, start), seen)
    except OSError as error:
        raise ImagesError(
            f"{path} cannot be read ({error.strerror}); expected a tar, tar.gz or zip archive: check the path and "
            "your permissions"
        ) from error
    finally:
        os.close(descriptor)
    return f", and {_NUM_PLACES} places all over it"


def _add_headers(data: bytes, seen: Inspection) -> None:
    for start in range(0, len(data) - BLOCK_BYTES + 1, BLOCK_BYTES):
        block = data[start : start + BLOCK_BYTES]
        if block[257:262] != b"ustar":
            continue
        try:
            header = read_header(block)
        except ValueError:  # pixels that look like a header
            continue
        if header is not None and header.kind in FILE_KINDS:
            seen.add_name(header.name, num_images=0)
