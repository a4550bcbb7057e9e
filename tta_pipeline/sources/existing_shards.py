"""Third-party shards, `<root>/<corruption>/<severity>/*.tar`: read and never rewritten."""

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from tta_pipeline.errors import ClassMapError, SourceError
from tta_pipeline.files import published_folder
from tta_pipeline.labels.class_map import label_order
from tta_pipeline.names import require_unicode
from tta_pipeline.partitions import Cell
from tta_pipeline.sources.folder_tree import WRAPPERS
from tta_pipeline.sources.tar_stream import TarStream, opened

_MAX_LABEL = 99_999  # ImageNet-21k has 21,841 classes; a larger number is no label
_MAX_CLASS_BYTES = 4096


class StatedClass(NamedTuple):
    """What a shard says about the class of a sample: a name, a label, or both."""

    name: str
    """Name of the class folder, or text of the `.cls` member; empty if there is only a label."""
    label: int | None
    """Integer in the `.cls` member, if it has one."""


@dataclass(frozen=True, kw_only=True)
class ExistingShards:
    """A source whose cells are folders of tars."""

    root: Path
    cells: tuple[Cell, ...]
    """The cells that make up the source; only their classes count for the class map."""
    elsewhere: tuple[tuple[Cell, Path], ...] = ()
    """Cells whose folders are not at `<root>/<corruption>/<severity>`, such as clean images."""

    def folder(self, cell: Cell) -> Path:
        """Return the folder of the shards of *cell*."""
        return dict(self.elsewhere).get(cell, self.root / cell.path)

    def class_names(self) -> tuple[str, ...]:
        """Return the classes of all cells that exist, found by reading only headers and `.cls` members.

        Raises:
            SourceError, ClassMapError: see `class_names_in`.
        """
        return class_names_in(folder for cell in self.cells if (folder := self.folder(cell)).is_dir())

    def version(self, cell: Cell) -> str:
        """Return the digest of names, sizes and modification times of the shards of *cell*.

        Raises:
            SourceError: there are no shards.
        """
        return shards_version(self.folder(cell))


def stated_class(member: str, text: str | None) -> StatedClass | None:
    """Return what an image's name and its `.cls` member, if any, say about its class; None if they say nothing."""
    folder = member.rpartition("/")[0].rpartition("/")[2]
    name = "" if folder in WRAPPERS or folder == "." else folder
    if text is not None and text.isdecimal():
        return StatedClass(name, int(text))
    return StatedClass(name or text or "", None) if name or text else None


def classes_in_label_order(stated: Iterable[StatedClass]) -> tuple[str, ...]:
    """Return the classes of a whole source: the sorted names or, with labels only, the numbers up to the largest.

    Raises:
        ClassMapError: some samples have a name and others only a label, or a label is too large.
    """
    found = set(stated)
    names = {name for name, _ in found if name}
    labels = {label for name, label in found if not name and label is not None}
    if names and labels:
        raise ClassMapError(
            f"found samples with class names ({min(names)}, ...) and samples with only a label ({min(labels)}, ...); "
            "expected one or the other: give a class map, which says which label belongs to which name"
        )
    if labels and max(labels) > _MAX_LABEL:
        raise ClassMapError(f"found the label {max(labels)} in a .cls member; expected 0 to {_MAX_LABEL}: correct it")
    return label_order(names) or tuple(str(label) for label in range(max(labels, default=-1) + 1))


def class_names_in(folders: Iterable[Path]) -> tuple[str, ...]:
    """Return the classes of the shards in *folders*, in label order.

    Raises:
        SourceError: a shard is damaged.
        ClassMapError: see `classes_in_label_order`.
    """
    return classes_in_label_order(
        stated for folder in folders for path in shard_files(folder) for stated in set(_stated_in(path))
    )


def shard_files(folder: Path) -> tuple[Path, ...]:
    """Return the tars in *folder*, sorted by name, without hidden files.

    Raises:
        SourceError: there are no tars.
    """
    found = tuple(sorted(path for path in folder.glob("*.tar") if not path.name.startswith(".")))
    if not found:
        raise SourceError(f"0 shards in {folder}; expected *.tar: correct the root, or wait until they are there")
    return found


def shards_version(folder: Path) -> str:
    """Return the digest of names, sizes and modification times of the shards in *folder*; links count as their targets.

    Raises:
        SourceError: there are no shards, or one cannot be read.
    """
    lines = []
    for path in shard_files(folder):
        try:
            status = path.stat()
        except OSError as error:
            raise SourceError(f"{path} cannot be read ({error.strerror}); expected a shard: restore it") from error
        lines.append(f"{path.name}\0{status.st_size}\0{status.st_mtime_ns}")
    return hashlib.sha256("\n".join(lines).encode("utf-8", "surrogateescape")).hexdigest()


def link_shards(source: Path, target: Path, *, anew: bool = False) -> bool:
    """Make *target* a folder of symbolic links to the shards in *source*; return whether it had to be made.

    A folder that is made *anew*, or made because the shards are different, has no manifest.

    Raises:
        SourceError: there are no shards in *source*.
    """
    wanted = {path.name: path.absolute() for path in shard_files(source)}
    present = {path.name: path.readlink() if path.is_symlink() else None for path in target.glob("*.tar")}
    if present == wanted and not anew:
        return False
    with published_folder(target) as folder:
        for name, path in wanted.items():
            (folder / name).symlink_to(path)
    return True


def _stated_in(path: Path) -> Iterator[StatedClass]:
    """Yield what the shard *path* says about the classes of its samples, without reading images."""
    images: dict[str, str] = {}
    texts: dict[str, str] = {}
    with opened(path) as stream:
        for entry in stream:
            folder, _, name = entry.name.rpartition("/")
            key = f"{folder}/{name.partition('.')[0]}"
            if name.lower().endswith(".cls"):
                texts[key] = _text(stream)
            elif not name.lower().endswith(".json"):
                images[key] = entry.name
    for key, member in images.items():
        stated = stated_class(member, texts.get(key))
        if stated is not None:  # adoption reports the samples without a class
            require_unicode(stated.name, of=path, error=SourceError)
            yield stated


def _text(stream: TarStream) -> str:
    return stream.read(_MAX_CLASS_BYTES).decode("utf-8", "replace").strip()
