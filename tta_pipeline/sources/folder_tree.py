"""Images in folders, laid out like ImageNet-C: `<root>/<corruption>/<severity>/<class>/<name>.JPEG`."""

import os
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path

from tta_pipeline.errors import SourceError
from tta_pipeline.garbage import uncollected
from tta_pipeline.labels.class_map import label_order
from tta_pipeline.labels.label_files import class_by_file, class_by_pattern
from tta_pipeline.names import require_unicode
from tta_pipeline.partitions import CLEAN, Cell
from tta_pipeline.sources.listing import Listing, SourceImage

IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".webp")
WRAPPERS = frozenset({"images", "val", "train", "test"})
"""Folders that some copies of a data set put around or into the class folders; none of them is a class."""


@dataclass(frozen=True, kw_only=True)
class FolderTree:
    """A source whose cells are folders of class folders."""

    root: Path
    cells: tuple[Cell, ...]
    """The cells that make up the source; only their class folders count for the class map."""
    elsewhere: tuple[tuple[Cell, Path], ...] = ()
    """Cells whose folders are not at `<root>/<corruption>/<severity>`, such as clean images."""
    class_pattern: str | None = None
    """Regular expression, searched for in `<folder>/<file>`; its first group is the class. None: the folder is."""
    classes_by_file: Mapping[str, str] = field(default_factory=dict)
    """Class of each file by its name; empty: the folder or the pattern says it."""
    suffixes: tuple[str, ...] = IMAGE_SUFFIXES
    """Suffixes of the files that are images, in lower case."""
    _latest: dict[Cell, Listing] = field(default_factory=dict, init=False, repr=False, compare=False)
    """The listing of the latest version, kept so that a tree is not walked twice in a row."""

    def folder(self, cell: Cell) -> Path:
        """Return the folder of class folders of *cell*."""
        return dict(self.elsewhere).get(cell, self.root / cell.path)

    def class_names(self) -> tuple[str, ...]:
        """Return the union of the classes of all cells that exist, in label order."""
        if self.class_pattern is not None or self.classes_by_file:
            there = [cell for cell in self.cells if self.folder(cell).is_dir()]
            return label_order({image.class_name for cell in there for image in self._walked(cell).images})
        folders = (self.folder(cell) for cell in self.cells)
        return label_order({name for folder in folders if folder.is_dir() for name in _class_names(folder)})

    def version(self, cell: Cell) -> str:
        """Return the digest of the listing of *cell*."""
        self._latest.clear()
        self._latest[cell] = self._walked(cell)
        return self._latest[cell].version

    def together(self, cell: Cell, among: Sequence[Cell]) -> tuple[Cell, ...]:  # noqa: ARG002 - each lies by itself
        """Return *cell* alone."""
        return (cell,)

    def prepared(self, cells: Sequence[Cell]) -> AbstractContextManager[None]:  # noqa: ARG002 - files lie there already
        """Do nothing: every listing is available at any time."""
        return nullcontext()

    def listing(self, cell: Cell) -> Listing:
        """Return the images of *cell*, sorted by name.

        Links to files count as files, wherever they lead; a link to a folder above itself is not followed.

        Raises:
            SourceError: the cell's folder is missing or holds no image, or a link is broken.
        """
        return self._latest.pop(cell, None) or self._walked(cell)

    @uncollected()
    def _walked(self, cell: Cell) -> Listing:
        folder = self.folder(cell)
        if not folder.is_dir():
            raise SourceError(f"{folder} does not exist; expected the class folders of {cell.key}")
        found = _Found(class_pattern=self.class_pattern, classes_by_file=self.classes_by_file, suffixes=self.suffixes)
        _walk(str(folder), None, found, ancestors=())
        if not found.images:
            raise SourceError(
                f"0 images under {folder}; expected class folders with files ending in {', '.join(self.suffixes)}"
            )
        return Listing(
            cell=cell,
            root=folder,
            images=tuple(sorted(found.images)),
            num_hidden=found.num_hidden,
            strays=tuple(found.strays),
        )


def discover(
    root: Path, *, group_depth: int, prefixes: Sequence[str] = (), names: Callable[[str], str] = str
) -> FolderTree:
    """Return the tree under *root* whose cells are the folders *group_depth* levels down.

    The last two levels are corruption and severity: depth 0 is one set of clean images, 1 a corruption without
    severities, 3 has a level of groups around the corruptions.

    Args:
        root: Folder to search.
        group_depth: Levels of folders above the class folders.
        prefixes: Leading parts of the groups to take, such as `fog` or `fog/5`; if empty, all.
        names: Gives the shift whose folder has a name.

    Raises:
        SourceError: nothing matches, or two folders would be the same cell.
    """
    if group_depth == 0:
        return FolderTree(root=root, cells=(CLEAN,), elsewhere=((CLEAN, root),))
    wanted = [tuple(part for part in prefix.split("/") if part not in ("", ".")) for prefix in prefixes]
    folders: dict[Cell, Path] = {}
    for path in sorted(_folders_at(root, group_depth)):
        parts = path.relative_to(root).parts
        if wanted and not any(parts[: len(prefix)] == prefix for prefix in wanted):
            continue
        cell = _cell(parts, names)
        other = folders.setdefault(cell, path)
        if other != path:
            raise SourceError(f"{path} and {other} are both {cell.key}; expected one folder for each cell")
    if not folders:
        raise SourceError(
            f"no folder {group_depth} levels under {root} begins with {', '.join(prefixes) or 'anything'}; expected "
            "<corruption>/<severity>: check --group-depth and --group-prefix"
        )
    return FolderTree(root=root, cells=tuple(folders), elsewhere=tuple(folders.items()))


@dataclass
class _Found:
    class_pattern: str | None
    classes_by_file: Mapping[str, str]
    suffixes: tuple[str, ...]
    images: list[SourceImage] = field(default_factory=list)
    strays: list[Path] = field(default_factory=list)
    num_hidden: int = 0

    def class_of(self, folder: str | None, file_name: str) -> str | None:
        """Return the class of a file in the class folder *folder*, None if it has none."""
        if self.classes_by_file:
            return class_by_file(self.classes_by_file, file_name, where=folder or "the folder")
        if self.class_pattern is None:
            return folder
        return class_by_pattern(self.class_pattern, f"{folder}/{file_name}" if folder else file_name)


def _walk(folder: str, class_name: str | None, found: _Found, *, ancestors: tuple[tuple[int, int], ...]) -> None:
    """Collect the images under *folder*; those directly in it are of class *class_name*."""
    with _opened(folder) as descriptor:
        status = os.fstat(descriptor)
        if (status.st_dev, status.st_ino) in ancestors:
            return
        ancestors = (*ancestors, (status.st_dev, status.st_ino))
        for entry in _entries(descriptor, folder):
            path = f"{folder}/{entry.name}"
            if entry.name.startswith("."):
                found.num_hidden += 1
            elif entry.is_dir():
                _walk(path, class_name if entry.name in WRAPPERS else entry.name, found, ancestors=ancestors)
            elif entry.name.lower().endswith(found.suffixes) and (named := found.class_of(class_name, entry.name)):
                found.images.append(_image(named, path, entry))
            else:
                found.strays.append(Path(path))


def _image(class_name: str, path: str, entry: os.DirEntry[str]) -> SourceImage:
    if not path.isascii():
        require_unicode(f"{class_name}/{entry.name}", of=Path(path).parent, error=SourceError)
    try:
        status = entry.stat()
    except OSError as error:
        target = f" and links to {Path(path).readlink()}" if entry.is_symlink() else ""
        raise SourceError(f"{path} cannot be read ({error.strerror}){target}; expected an image file") from error
    if not stat.S_ISREG(status.st_mode):  # reading a named pipe would block
        raise SourceError(f"{path} is not a regular file; expected an image file: remove it")
    return SourceImage(class_name, entry.name, path, status.st_size, status.st_mtime_ns)


@contextmanager
def _opened(folder: str) -> Iterator[int]:
    """Open *folder*, so that its files are looked up in it and not each from the root of the file system."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise _unlisted(folder, error) from error
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _entries(folder: str | Path | int, name: str | Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except OSError as error:
        raise _unlisted(name, error) from error


def _unlisted(folder: str | Path, error: OSError) -> SourceError:
    return SourceError(f"{folder} cannot be listed ({error.strerror}); expected a readable folder")


def _folders(folder: str | Path) -> Iterator[os.DirEntry[str]]:
    return (entry for entry in _entries(folder, folder) if entry.is_dir() and not entry.name.startswith("."))


def _folders_at(root: Path, depth: int) -> Iterator[Path]:
    for entry in _folders(root):
        path = root / entry.name
        yield from [path] if depth == 1 else _folders_at(path, depth - 1)


def _cell(parts: tuple[str, ...], names: Callable[[str], str]) -> Cell:
    if len(parts) > 1 and parts[-1].isdecimal():
        return Cell(corruption=names(parts[-2]), severity=int(parts[-1]))
    return Cell(corruption=names(parts[-1]), severity=0)


def _class_names(folder: str | Path) -> Iterator[str]:
    """Yield the class folders under *folder*, looking through wrappers around them."""
    for entry in _folders(folder):
        if entry.name in WRAPPERS:
            yield from _class_names(entry.path)
        else:
            require_unicode(entry.name, of=os.fspath(folder), error=SourceError)
            yield entry.name
