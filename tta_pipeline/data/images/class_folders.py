"""Rules to find an image's class among the folders around it, and checks that refuse ambiguous folders."""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from tta_pipeline.data.labels.label_files import class_by_file, class_by_pattern
from tta_pipeline.errors import ImagesError
from tta_pipeline.util.short_lists import abbreviate_list

WRAPPERS = frozenset({"images", "val", "train", "test"})
"""Folders that some copies of a dataset have around or inside class folders; classes only if in the class map."""
_OF_SYSTEMS = frozenset({"__MACOSX", "@eaDir", "#recycle", "@Recycle", "lost+found", "$RECYCLE.BIN"})
"""Folders that macOS's zips, disk stations and file systems add; their companions and thumbnails may be images."""

Folders = tuple[str, ...]
"""Names of the folders around an image, from the outermost."""
ClassNames = Callable[[], Collection[str]]
"""Returns the names in the class map; nothing if there is none."""


def is_hidden(name: str) -> bool:
    """Return whether a file or folder with this *name* does not belong to a dataset."""
    return name.startswith(".") or name in _OF_SYSTEMS


def folders_in(folder: Path) -> list[Path]:
    """Return the folders directly in *folder* that are not hidden, sorted."""
    return [path for path in sorted(folder.iterdir()) if path.is_dir() and not is_hidden(path.name)]


@dataclass(frozen=True, kw_only=True)
class ClassRule:
    """Where the class of an image comes from: a split, a list of files, a pattern, or the folders around it."""

    classes_by_path: Mapping[str, str] = field(default_factory=dict)
    """Class of each file of a split by its path, before which there may be further folders; empty: there is no split.
    """
    classes_by_file: Mapping[str, str] = field(default_factory=dict)
    """Class of each file by its name; empty: the pattern or the folder gives the class."""
    pattern: str | None = None
    """Regular expression for `<folder>/<file>` whose first group is the class. None: the folder is the class."""
    named: ClassNames
    """Returns the names in the class map, if there is one; a folder such as `train` is a class only if named there."""
    is_flat: bool = False
    """Whether there are no folders, so that only the list or the pattern can give a class."""

    @cached_property
    def is_by_file(self) -> bool:
        """Whether the class of an image comes from its file, not from its folder."""
        known = self.classes_by_path or self.classes_by_file
        return self.is_flat or bool(known) or self.pattern is not None

    @property
    def classes_of_list(self) -> frozenset[str]:
        """Classes of the list of files, if it alone gives the classes."""
        is_only = not self.classes_by_path and self.pattern is None
        return frozenset(self.classes_by_file.values() if is_only else ())

    def leaves_out(self, folder: str, file_name: str) -> bool:
        """Return whether there is a split without the file *file_name* in *folder*, as `class_folder` names it."""
        return bool(self.classes_by_path) and self._class_by_path(f"{folder}/{file_name}") is None

    def class_folder(self, folders: Folders) -> str:
        """Return the name of the class folder among *folders*, or all of them for a split; empty if there is none."""
        if self.classes_by_path:
            return "/".join(folders)
        depth = class_depth(folders, self.named)
        return folders[depth - 1] if depth else ""

    def class_of(self, folder: str, file_name: str, *, where: str | Path) -> str:
        """Return the class of an image in the class folder *folder*, found at *where*; empty if it has none."""
        if self.classes_by_path:
            return self._class_by_path(f"{folder}/{file_name}") or ""
        if self.pattern is not None:
            return class_by_pattern(self.pattern, f"{folder}/{file_name}" if folder else file_name)
        return class_by_file(self.classes_by_file, file_name, where=where) if self.is_by_file else folder

    def _class_by_path(self, path: str) -> str | None:
        """Return the class of the file at *path*, whose first folders the split may omit; None: the split lacks it."""
        while path:
            if path in self.classes_by_path:
                return self.classes_by_path[path]
            path = path.partition("/")[2]
        return None


def class_depth(folders: Folders, named: ClassNames) -> int:
    """Return how many of *folders* lead to the class folder, itself included; 0 if there is none."""
    if WRAPPERS.isdisjoint(folders):
        return len(folders)
    depth = max((number for number, name in enumerate(folders, 1) if name not in WRAPPERS), default=0)
    classes = named()
    if depth and folders[depth - 1] in classes:
        return depth
    return max((number for number, name in enumerate(folders, 1) if number > depth and name in classes), default=depth)


def require_unambiguous(found: Iterable[Folders], named: ClassNames, *, where: str) -> None:
    """Refuse a folder such as `train` that contains images and is next to class folders: it may be a class too.

    *found* are the folders with images in *where*.
    """
    depths = {folders: class_depth(folders, named) for folders in found}
    for folders in sorted(depths):
        classes = [name for name in dict.fromkeys(folders) if name in named()]
        if len(classes) > 1 and WRAPPERS.issuperset(folders):
            raise ImagesError(
                f"{where} has images in {'/'.join(folders)}, but the class map lists {abbreviate_list(classes)}; "
                "expected folders that are classes: move the images into the folder of their class"
            )
    class_folders = sorted(folders[:depth] for folders, depth in depths.items() if depth)
    parents = {folders[:-1] for folders in class_folders}
    for folders, depth in sorted(depths.items()):
        if depth < len(folders) and (folders[:depth] in parents or (class_folders and not depth)):
            name = folders[depth]
            raise ImagesError(
                f"{where} has images in {'/'.join(folders)}, next to class folders such as "
                f"{'/'.join(class_folders[0])}; expected a class map that shows whether {name!r} is a class: name a "
                "class map that contains it, or move this folder away"
            )


def require_one_level(found: Iterable[Folders], named: ClassNames, *, where: str) -> None:
    """Refuse class folders at several depths, or of one name in several folders, unless the class map has their names.

    Thumbnails in `cat/small` would be a class `small`, and the images in `cat/part_1` and `dog/part_1` one class.
    """
    class_folders = sorted({folders[:depth] for folders in found if (depth := class_depth(folders, named))})
    places = {
        folders: (*(name for name in folders[:-1] if name not in WRAPPERS), folders[-1]) for folders in class_folders
    }
    highest = min(class_folders, key=lambda folders: len(places[folders]), default=())
    first_by_name: dict[str, Folders] = {}
    for folders, place in places.items():
        first = first_by_name.setdefault(place[-1], folders)
        other = highest if len(place) > len(places[highest]) else first
        if places[other] != place and place[-1] not in named():
            raise ImagesError(
                f"{where} has images both in {'/'.join(folders)} and in {'/'.join(other)}; expected all class folders "
                f"in the same folder: move the images in {'/'.join(folders)} into the folder of their class, or away"
            )


def find_only_parent(found: Iterable[Folders], named: ClassNames, *, where: Path, folder: str) -> Folders:
    """Return the only parent of all class folders, used if the only cell's own *folder* is missing."""
    depths = {folders: class_depth(folders, named) for folders in found}
    parents = sorted({folders[: depth - 1] if depth else folders for folders, depth in depths.items()})
    if len(parents) > 1:
        names = abbreviate_list(["/".join(parent) or "its top" for parent in parents])
        raise ImagesError(
            f"{where} has no folder {folder}, but class folders in {len(parents):,} other folders: {names}; expected "
            f"{folder}/<class>, or one folder with all classes: rename the right folder to {folder}, or write its "
            "name under `folders` of the dataset"
        )
    return parents[0] if parents else ()
