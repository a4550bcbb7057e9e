"""Images in folders with the layout of ImageNet-C: `<root>/<corruption>/<severity>/<class>/<name>.JPEG`."""

import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from tta_pipeline.data.images.class_folders import (
    WRAPPERS,
    ClassNames,
    ClassRule,
    Folders,
    find_only_parent,
    is_hidden,
    require_one_level,
    require_unambiguous,
)
from tta_pipeline.data.images.listing import ListedImage, Listing
from tta_pipeline.data.labels.class_map import label_order
from tta_pipeline.domain.cells import CLEAN, Cell
from tta_pipeline.errors import ImagesError
from tta_pipeline.util.garbage_collection import gc_paused
from tta_pipeline.util.identifiers import require_unicode

IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".webp")


def is_image(file_name: str) -> bool:
    """Return whether a file of this name is an image; macOS's hidden companion files are not."""
    return file_name.lower().endswith(IMAGE_SUFFIXES) and not file_name.startswith(".")


@dataclass(frozen=True, kw_only=True)
class FolderTree:
    """A source whose cells are folders of class folders."""

    root: Path
    cells: tuple[Cell, ...]
    """The cells of the source; only their class folders count for the class map."""
    elsewhere: tuple[tuple[Cell, Path], ...] = ()
    """Cells whose folders are not at `<root>/<corruption>/<severity>`, such as clean images."""
    class_pattern: str | None = None
    """Regular expression for `<folder>/<file>` whose first group is the class. None: the folder is the class."""
    classes_by_file: Mapping[str, str] = field(default_factory=dict)
    """Class of each file by its name; empty: the folder or the pattern gives the class."""
    classes_by_path: Mapping[str, str] = field(default_factory=dict)
    """Class of each file of a split by its path, see `ClassRule`; other files are left out."""
    suffixes: tuple[str, ...] = IMAGE_SUFFIXES
    """Suffixes of the files that are images, in lower case."""
    named: ClassNames = tuple
    """Returns the names in the class map, if there is one; a folder such as `train` is a class only if named there."""
    missing_folder: str = ""
    """Folder of the only cell, if the root lacks it: all class folders under the root then belong to this cell."""
    _latest: dict[Cell, Listing] = field(default_factory=dict, init=False, repr=False, compare=False)
    """The listing behind the latest `version`, kept so that a tree is not walked twice in a row."""

    def folder(self, cell: Cell) -> Path:
        """Return the folder with the class folders of *cell*."""
        return dict(self.elsewhere).get(cell, self.root / cell.path)

    def class_names(self) -> tuple[str, ...]:
        """Return the union of the classes of all cells that exist, in label order.

        A folder without an image in any cell is no class. A list of files gives all of its classes, even
        without an image here.
        """
        if self._rule.classes_of_list:
            return label_order(self._rule.classes_of_list)
        if self._rule.is_by_file:
            there = [cell for cell in self.cells if self.folder(cell).is_dir()]
            return label_order({image.class_name for cell in there for image in self._make_listing(cell).images})
        names: set[str] = set()
        for cell in self.cells:
            if self.folder(cell).is_dir():
                names |= self._class_names(self._class_root(cell), known=names)
        return label_order(names)

    def version(self, cell: Cell) -> str:
        """Return a digest of the listing of *cell*."""
        self._latest.clear()
        self._latest[cell] = self._make_listing(cell)
        return self._latest[cell].version

    def together(self, cell: Cell, among: Sequence[Cell]) -> tuple[Cell, ...]:  # noqa: ARG002 - each lies by itself
        """Return *cell* alone."""
        return (cell,)

    def prepared(self, cells: Sequence[Cell]) -> AbstractContextManager[None]:  # noqa: ARG002 - files are there already
        """Do nothing: every listing is available at any time."""
        return nullcontext()

    def listing(self, cell: Cell) -> Listing:
        """Return the images of *cell*, sorted by name.

        Links to files count as files, wherever they lead. A link to a folder above itself is not followed.
        """
        return self._latest.pop(cell, None) or self._make_listing(cell)

    @cached_property
    def _rule(self) -> ClassRule:
        return ClassRule(
            classes_by_path=self.classes_by_path,
            classes_by_file=self.classes_by_file,
            pattern=self.class_pattern,
            named=self.named,
        )

    def _class_root(self, cell: Cell) -> Path:
        """Return the parent of the class folders of *cell*."""
        folder = self.folder(cell)
        return folder.joinpath(*self._only_parent(folder, self._find_images(cell))) if self.missing_folder else folder

    def _class_names(self, folder: Path, *, known: Collection[str]) -> set[str]:
        found = dict(_class_folders(str(folder), (), self.suffixes, known=known))
        require_unambiguous(found, self.named, where=str(folder))
        require_one_level(found.values(), self.named, where=str(folder))
        return {name for folders in found if (name := self._rule.class_folder(folders))}

    def _only_parent(self, folder: Path, found: "_FoundImages") -> Folders:
        if other := _find_in_other_case(folder, self.missing_folder):
            raise ImagesError(
                f"{folder} contains {other.relative_to(folder)}; expected {self.missing_folder}: rename the folder, "
                "or write its name under `folders` of the dataset"
            )
        return find_only_parent(found.class_folders, self.named, where=folder, folder=self.missing_folder)

    def _find_images(self, cell: Cell) -> "_FoundImages":
        folder = self.folder(cell)
        if not folder.is_dir():
            state = "is a file" if folder.exists() else "does not exist"
            raise ImagesError(
                f"{folder} {state}; expected the class folders of {cell.key}: put them there, or leave the cell out"
            )
        found = _FoundImages(root=folder, rule=self._rule, suffixes=self.suffixes)
        _walk(str(folder), (), found, ancestors=())
        return found

    @gc_paused()
    def _make_listing(self, cell: Cell) -> Listing:
        folder, found = self.folder(cell), self._find_images(cell)
        if not found.images:
            raise ImagesError(
                f"There are no images under {folder}; expected class folders with files that end in "
                f"{', '.join(self.suffixes)}: check the path"
            )
        if not self._rule.is_by_file:
            require_unambiguous(found.class_folders | found.loose_folders, self.named, where=str(folder))
        if self.missing_folder:
            self._only_parent(folder, found)
        elif not self._rule.is_by_file:
            require_one_level(found.class_folders, self.named, where=str(folder))
        return Listing(
            cell=cell,
            root=folder,
            images=tuple(sorted(found.images)),
            num_hidden=found.num_hidden,
            strays=tuple(found.strays),
        )


def discover_tree(
    root: Path,
    *,
    class_dir_depth: int,
    prefixes: Sequence[str] = (),
    names: Callable[[str], str] = str,
    severities: Callable[[str, str], str] = lambda folder, _: folder,
) -> FolderTree:
    """Return the tree under *root* whose cells are the folders *class_dir_depth* levels down.

    The last two levels are corruption and severity. Depth 0 is one set of clean images, depth 1 has corruptions without
    severities, and depth 3 has a level of groups around the corruptions.

    Args:
        root: Folder to search.
        class_dir_depth: Levels of folders above the class folders.
        prefixes: Leading parts of the folders to include, such as `fog` or `fog/5`; if empty, all.
        names: Returns the shift for the name of a folder.
        severities: Returns the number for the names of a severity's folder and of its shift's.

    Raises:
        ImagesError: no folder matches, or two folders would be the same cell.
    """
    if class_dir_depth == 0:
        return FolderTree(root=root, cells=(CLEAN,), elsewhere=((CLEAN, root),))
    wanted = [tuple(part for part in prefix.split("/") if part not in ("", ".")) for prefix in prefixes]
    folders: dict[Cell, Path] = {}
    for path in sorted(_folders_at(root, class_dir_depth)):
        parts = path.relative_to(root).parts
        if wanted and not any(parts[: len(prefix)] == prefix for prefix in wanted):
            continue
        cell = _cell(parts, names, severities)
        other = folders.setdefault(cell, path)
        if other != path:
            raise ImagesError(
                f"{path} and {other} both contain {cell.key}; expected one folder per cell: move one of them away"
            )
    if not folders:
        raise ImagesError(
            f"There is no folder {class_dir_depth} levels below {root} whose name starts with "
            f"{', '.join(prefixes) or 'anything'}; expected <corruption>/<severity>: check --class-dir-depth and --only"
        )
    return FolderTree(root=root, cells=tuple(folders), elsewhere=tuple(folders.items()))


@dataclass(kw_only=True)
class _FoundImages:
    root: Path
    rule: ClassRule
    suffixes: tuple[str, ...]
    images: list[ListedImage] = field(default_factory=list)
    class_folders: set[Folders] = field(default_factory=set)
    """Folders with images that have a class."""
    loose_folders: set[Folders] = field(default_factory=set)
    """Folders with images that have no class."""
    strays: list[Path] = field(default_factory=list)
    num_hidden: int = 0


def _walk(folder: str, parts: Folders, found: _FoundImages, *, ancestors: tuple[tuple[int, int], ...]) -> None:
    """Collect the images under *folder*; *parts* are the names of the folders down to it."""
    class_name = found.rule.class_folder(parts)
    with _opened(folder) as descriptor:
        status = os.fstat(descriptor)
        if (status.st_dev, status.st_ino) in ancestors:
            return
        ancestors = (*ancestors, (status.st_dev, status.st_ino))
        entries = _entries(descriptor, folder)
        if not entries:
            found.strays.append(Path(folder))
        for entry in entries:
            path = f"{folder}/{entry.name}"
            if is_hidden(entry.name):
                found.num_hidden += 1
            elif entry.is_dir():
                _walk(path, (*parts, entry.name), found, ancestors=ancestors)
            elif found.rule.leaves_out(class_name, entry.name):
                continue
            elif not entry.name.lower().endswith(found.suffixes):
                found.strays.append(Path(path))
            elif named := found.rule.class_of(class_name, entry.name, where=found.root):
                found.images.append(_image(named, path, entry))
                found.class_folders.add(parts)
            else:
                found.strays.append(Path(path))
                found.loose_folders.add(parts)


def _image(class_name: str, path: str, entry: os.DirEntry[str]) -> ListedImage:
    if not path.isascii():
        require_unicode(f"{class_name}/{entry.name}", of=Path(path).parent, error=ImagesError)
    try:
        status = entry.stat()
    except OSError as error:
        target = f" and links to {Path(path).readlink()}" if entry.is_symlink() else ""
        raise ImagesError(
            f"{path} cannot be read ({error.strerror}){target}; expected an image file: restore the file, or check "
            "your permissions"
        ) from error
    return ListedImage(class_name, entry.name, path, status.st_size, status.st_mtime_ns)


@contextmanager
def _opened(folder: str) -> Iterator[int]:
    """Open *folder*, so that the kernel looks up its files in it instead of from the root of the file system."""
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


def _unlisted(folder: str | Path, error: OSError) -> ImagesError:
    return ImagesError(f"{folder} cannot be listed ({error.strerror}); expected a readable folder")


def _folders(folder: str | Path) -> Iterator[os.DirEntry[str]]:
    return (entry for entry in _entries(folder, folder) if entry.is_dir() and not is_hidden(entry.name))


def _folders_at(root: Path, depth: int) -> Iterator[Path]:
    for entry in _folders(root):
        path = root / entry.name
        yield from [path] if depth == 1 else _folders_at(path, depth - 1)


def _cell(parts: tuple[str, ...], names: Callable[[str], str], severities: Callable[[str, str], str]) -> Cell:
    if len(parts) > 1 and (number := severities(parts[-1], parts[-2])).isdecimal():
        return Cell(corruption=names(parts[-2]), severity=int(number))
    return Cell(corruption=names(parts[-1]), severity=0)


def _class_folders(
    folder: str,
    parts: Folders,
    suffixes: tuple[str, ...],
    *,
    known: Collection[str],
    around: frozenset[tuple[int, int]] = frozenset(),
) -> Iterator[tuple[Folders, Folders]]:
    """Yield the class folders under *folder*, also inside wrappers, and each wrapper that directly holds images.

    With each comes the folder in it that an image was found in. Folders without an image do not count; folders
    with the name of a *known* class are not searched for an image. *around* are device and inode of the folders around
    *folder*.
    """
    around |= {_identity(folder)}
    for entry in _entries(folder, folder):
        inner = (*parts, entry.name)
        if is_hidden(entry.name):
            continue
        if not entry.is_dir():
            if parts and entry.name.lower().endswith(suffixes):
                yield parts, parts
        elif entry.name in WRAPPERS:
            yield from _class_folders(entry.path, inner, suffixes, known=known, around=around)
        elif holding := inner if entry.name in known else _find_image(entry.path, inner, suffixes, around):
            require_unicode(entry.name, of=folder, error=ImagesError)
            yield inner, holding


def _find_image(
    folder: str, parts: Folders, suffixes: tuple[str, ...], around: frozenset[tuple[int, int]]
) -> Folders | None:
    """Return the folder of an image at any depth under *folder*; only the necessary part of it is read."""
    if (identity := _identity(folder)) in around:
        return None
    inner = []
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if is_hidden(entry.name):
                    continue
                if entry.is_dir():
                    inner.append(entry)
                elif entry.name.lower().endswith(suffixes):
                    return parts
    except OSError as error:
        raise _unlisted(folder, error) from error
    around |= {identity}
    found = (_find_image(entry.path, (*parts, entry.name), suffixes, around) for entry in inner)
    return next(filter(None, found), None)


def _identity(folder: str) -> tuple[int, int]:
    status = os.stat(folder)  # noqa: PTH116 - there are many
    return status.st_dev, status.st_ino


def _find_in_other_case(root: Path, folder: str) -> Path | None:
    """Return the folder in *root* whose name equals *folder* except for upper and lower case, if there is one."""
    at = root
    for part in folder.split("/"):
        names = [entry.name for entry in _folders(at) if entry.name.casefold() == part.casefold()]
        if not names:
            return None
        at /= part if part in names else names[0]
    return at
