"""Third-party shards, `<root>/<shift>/<severity>/*.tar`: read and never rewritten."""

import hashlib
import json
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from tta_pipeline.data.images.archive_entry import Entry
from tta_pipeline.data.images.class_folders import WRAPPERS, require_one_level
from tta_pipeline.data.images.shard_files import find_one_set, shards_version
from tta_pipeline.data.images.shard_members import MAX_LABEL_BYTES, GatheredMembers, LabelContent, parse_member_name
from tta_pipeline.data.images.tar_stream import TarStream, opened_tar
from tta_pipeline.data.labels.class_map import label_order, require_plain_order, require_zero_based_labels
from tta_pipeline.data.labels.label_files import read_devkit_ids
from tta_pipeline.domain.cells import TRAIN, Cell
from tta_pipeline.errors import ClassMapError, ImagesError
from tta_pipeline.util.identifiers import require_unicode

_MAX_LABEL = 99_999  # ImageNet-21k has 21,841 classes; a larger number is no label
ONE_BASED_ADVICE = (
    "if the numbers in .cls or .json members are the ILSVRC2012_ID of the devkit, name its meta.mat by --devkit (in a "
    "benchmark file, devkit of the source); if they count from 1 otherwise, pack the shards again"
)
"""Advice for shards whose numbers are not labels."""


class StatedClass(NamedTuple):
    """The class of a sample as stated in a shard: by a folder, a label, a text, or several of these."""

    name: str
    """Name of the folder that the sample is in; empty if there is none."""
    label: int | None
    """Integer in the `.cls` or `.json` member, if any."""
    text: str = ""
    """Text in the `.cls` or `.json` member, if any and without a number."""
    around: str = ""
    """Path of the folder that the folder *name* is in; empty if there is none."""


@dataclass(frozen=True, kw_only=True)
class ExistingShards:
    """A source whose cells are folders of tars."""

    root: Path
    cells: tuple[Cell, ...]
    """The cells of the source; only their classes count for the class map."""
    elsewhere: tuple[tuple[Cell, Path], ...] = ()
    """Cells whose folders are not at `<root>/<shift>/<severity>`, such as clean images."""
    files: tuple[str, ...] = ()
    """Patterns of the names of the shards; if empty, all tars of a folder."""
    train_files: tuple[str, ...] = ()
    """Patterns of the names of the shards of training images."""
    devkit: Path | None = None
    """The devkit's `meta.mat`, if the numbers in the shards are the devkit's; None: the numbers are labels."""

    def folder(self, cell: Cell) -> Path:
        """Return the folder of the shards of *cell*."""
        return dict(self.elsewhere).get(cell, self.root / cell.path)

    def shards(self, cell: Cell) -> tuple[Path, ...]:
        """Return the shards of *cell*."""
        return find_one_set(self.folder(cell), self.train_files if cell == TRAIN else self.files)

    def class_names(self) -> tuple[str, ...]:
        """Return the classes of all cells that exist, reading only headers and label members."""
        there = (cell for cell in self.cells if self.folder(cell).is_dir())
        shards = (path for cell in there for path in self.shards(cell))
        return read_class_names(shards, self.names_by_id(), where=self.root)

    def names_by_id(self) -> Mapping[int, str] | None:
        """Return the class of each number in the shards; None if the numbers are labels."""
        return self._names_by_id

    def version(self, cell: Cell) -> str:
        """Return a digest of names, sizes and modification times of the shards of *cell*, and of the devkit's ids.

        Raises:
            ImagesError: there are no shards.
            ClassMapError: the devkit's file cannot be read.
        """
        return version_with_ids(shards_version(self.shards(cell)), self.names_by_id())

    @cached_property
    def _names_by_id(self) -> Mapping[int, str] | None:
        return read_devkit_ids(self.devkit) if self.devkit else None


def version_with_ids(version: str, names_by_id: Mapping[int, str] | None) -> str:
    """Return *version* combined with *names_by_id*, the classes of the numbers in the shards, if it is not None."""
    if names_by_id is None:
        return version
    return hashlib.sha256(json.dumps([version, sorted(names_by_id.items())]).encode()).hexdigest()


def stated_class(member: str, said: LabelContent) -> StatedClass | None:
    """Return the class stated by an image's name and its label members; None if they state none.

    A folder such as `train` is no class if there is a label member; otherwise a class map must name it.
    """
    around, _, folder = member.removeprefix("./").rpartition("/")[0].rpartition("/")
    name = "" if folder == "." or (folder in WRAPPERS and said != LabelContent()) else folder
    return StatedClass(name, *said, around) if name or said != LabelContent() else None


def replace_number_by_name(stated: StatedClass, names_by_id: Mapping[int, str], *, where: Path) -> StatedClass:
    """Return *stated*, found at *where*, with the class name instead of its number."""
    if stated.label is None:
        return stated
    if stated.label not in names_by_id:
        raise ClassMapError(
            f"{where}: a label member contains the class number {stated.label}; expected {min(names_by_id)} to "
            f"{max(names_by_id)}, as in the devkit: leave the devkit out if these numbers are already labels"
        )
    return stated._replace(label=None, text=names_by_id[stated.label])


def find_wrapper_folders(stated: Iterable[StatedClass]) -> frozenset[str]:
    """Return the folders that are not classes, because their samples have several labels or texts."""
    said_by_folder: defaultdict[str, set[tuple[int | None, str]]] = defaultdict(set)
    for name, label, text, _ in stated:
        if label is not None or text:
            said_by_folder[name].add((label, text))
    return frozenset(name for name, said in said_by_folder.items() if name and len(said) > 1)


def name_of_class(stated: StatedClass, wrappers: Collection[str]) -> str:
    """Return the name of the stated class; empty if only a label is stated."""
    return stated.text if stated.name in wrappers else stated.name or stated.text


def classes_in_label_order(stated: Iterable[StatedClass], *, where: Path | None) -> tuple[str, ...]:
    """Return the classes of a source: the sorted names or, with labels only, the numbers up to the largest.

    Args:
        stated: The stated class of each sample.
        where: The source, if these are all of its samples; None: other samples may have the label 0.

    Raises:
        ImagesError: class folders have several depths.
        ClassMapError: some samples have a name and others only a label; or a label is too large, or none is 0; or the
            names are numbers with more around them, such as `class_10`, and sort otherwise as text.
    """
    found = set(stated)
    wrappers = find_wrapper_folders(found)
    names = {name_of_class(one, wrappers) for one in found} - {""}
    labels = {one.label for one in found if one.label is not None and not name_of_class(one, wrappers)}
    if odd := sorted(WRAPPERS & {one.name for one in found}):
        raise ClassMapError(
            f"The shards have images in the folder {odd[0]}, which may or may not be a class; expected a class map "
            "with this name, or .cls or .json members: name the class map, or repack the shards with class folders only"
        )
    if names and labels:
        raise ClassMapError(
            f"Some samples have class names ({min(names)}, ...), but others have only a label ({min(labels)}, ...); "
            "expected the same for all samples: name a class map that gives each label a name"
        )
    folders = {(*filter(None, one.around.split("/")), one.name) for one in found if one.label is None and not one.text}
    require_one_level(folders, tuple, where=str(where or "a set of shards"))
    texts = {one.text for one in found if one.text and name_of_class(one, wrappers) == one.text}
    require_plain_order(texts, where=where or "a label member")
    if wrong := [label for label in labels if not 0 <= label <= _MAX_LABEL]:
        raise ClassMapError(
            f"A label member contains {wrong[0]}; expected a label from 0 to {_MAX_LABEL}: correct the shards"
        )
    if where is not None:
        require_zero_based_labels(labels, where=where, otherwise=ONE_BASED_ADVICE)
    return label_order(names) or tuple(str(label) for label in range(max(labels, default=-1) + 1))


def read_class_names(shards: Iterable[Path], names_by_id: Mapping[int, str] | None, *, where: Path) -> tuple[str, ...]:
    """Return the classes of *shards*, which are all shards of *where*, in label order.

    *names_by_id* has the class of each number, if the numbers in the shards are not labels.
    """
    found = ((path, stated) for path in shards for stated in _read_distinct_classes(path))
    named = (
        stated if names_by_id is None else replace_number_by_name(stated, names_by_id, where=path)
        for path, stated in found
    )
    return classes_in_label_order(named, where=where)


def _read_distinct_classes(path: Path) -> set[StatedClass]:
    with opened_tar(path) as stream:
        return {stated for _, stated in iterate_stated_classes(stream, path)}


def iterate_stated_classes(
    stream: TarStream, where: Path | str, *, max_members: int | None = None
) -> Iterator[tuple[Entry, StatedClass]]:
    """Yield each image of the shard *stream* with its stated class, without reading images.

    Samples without an image or a class are left out: adoption reports them. At most *max_members* members are read.
    """
    members = GatheredMembers[Entry, Entry](keep=lambda entry: entry, read=lambda _: stream.read(MAX_LABEL_BYTES))
    for entry in islice(stream, max_members):
        members.add(parse_member_name(entry.name), entry)
    for _, image, said in members.samples(where=where, error=ImagesError, is_whole=False):
        stated = stated_class(image.name, said)
        if stated is not None:
            require_unicode(stated.name, of=where, error=ImagesError)
            yield image, stated
