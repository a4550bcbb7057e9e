"""Rules to find an image's class among the folders around it, and checks that refuse ambiguous folders."""

from collections.abc import Callable, Collection, Iterable
from pathlib import Path

from tta_pipeline.errors import SourceError
from tta_pipeline.util.short_lists import abbreviate_list

WRAPPERS = frozenset({"images", "val", "train", "test"})
"""Folders that some copies of a data set have around or inside class folders; classes only if the class map says so."""

Folders = tuple[str, ...]
"""Names of the folders around an image, from the outermost."""
ClassNames = Callable[[], Collection[str]]
"""Returns the names in the class map; nothing if there is none."""


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
    """Refuse a folder such as `train` that holds images and lies beside class folders: it may be a class too.

    Raises:
        SourceError: the folders of images *found* in *where* have such a folder, and no class map names it.
    """
    depths = {folders: class_depth(folders, named) for folders in found}
    class_folders = sorted(folders[:depth] for folders, depth in depths.items() if depth)
    parents = {folders[:-1] for folders in class_folders}
    for folders, depth in sorted(depths.items()):
        if depth < len(folders) and (folders[:depth] in parents or (class_folders and not depth)):
            name = folders[depth]
            raise SourceError(
                f"{where} has images in {'/'.join(folders)}, beside class folders such as "
                f"{'/'.join(class_folders[0])}; expected a class map that shows whether {name!r} is a class: if it is, "
                "give a class map with this name; if not, move this folder away"
            )


def find_only_parent(found: Iterable[Folders], named: ClassNames, *, where: Path, folder: str) -> Folders:
    """Return the only parent of all class folders, used if the only cell's own *folder* is missing.

    Raises:
        SourceError: the class folders among the folders *found* in *where* have several parents.
    """
    depths = {folders: class_depth(folders, named) for folders in found}
    parents = sorted({folders[: depth - 1] if depth else folders for folders, depth in depths.items()})
    if len(parents) > 1:
        names = abbreviate_list(["/".join(parent) or "its top" for parent in parents])
        raise SourceError(
            f"{where} has no {folder}, and class folders in {len(parents):,} folders: {names}; expected "
            f"{folder}/<class>, or one folder with all classes: rename the right one to {folder}, or give its name in "
            "`folders` of the shift set"
        )
    return parents[0] if parents else ()
