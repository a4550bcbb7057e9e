"""The kind `huggingface`: a data set in the layouts of the Hub, in a folder or in the cache of huggingface_hub."""

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal, NamedTuple, Self

from pydantic import Field, model_validator

from tta_pipeline.data.images import ARRAYS, read_image_header
from tta_pipeline.data.labels.class_map import label_order, require_plain_order, require_zero_based_labels
from tta_pipeline.data.labels.label_text import name_or_digits
from tta_pipeline.data.shifts.shift_set import ShiftSet
from tta_pipeline.data.sources.choose_shift_set import CellImages, Place, choose_shift_set, is_shift
from tta_pipeline.data.sources.kinds.clean_images import Clean, add_clean_and_train
from tta_pipeline.data.sources.listing import Listing, Source
from tta_pipeline.data.sources.numbered_classes import (
    map_names_to_classes,
    merge_class_names,
    name_of_label,
    number_names,
)
from tta_pipeline.data.sources.shard_files import is_tar_like, require_read
from tta_pipeline.data.sources.shard_members import MAX_LABEL_BYTES, GatheredMembers, LabelContent, parse_member_name
from tta_pipeline.data.sources.source_section import (
    ImagesSection,
    SourceContext,
    Survey,
    fill_in_cell,
    find_shared_place,
)
from tta_pipeline.data.sources.spill import SpilledImages, SpillFile, SpillFolder
from tta_pipeline.data.sources.tar_stream import opened_tar
from tta_pipeline.domain.cells import Cell
from tta_pipeline.errors import SourceError
from tta_pipeline.util.identifiers import natural_order

_REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_ENDINGS = (".parquet", ".tar")
_USUAL_SPLITS = frozenset({"train", "training", "validation", "val", "test"})
"""Names of splits that may lie beside those that are shifts."""
_BATCH_SIZE = 256
_LABELS_AT_ONCE = 2**16


class HuggingFaceSource(ImagesSection):
    """A data set of the Hub: Parquet files with images and labels, or WebDataset tars; nothing is downloaded.

    The images are copied to the data root, cell by cell, while they are written as shards.
    """

    kind: Literal["huggingface"]
    data_set: str = Field(min_length=1)
    """Folder of the data set, or `organisation/name` of a data set in huggingface_hub's cache."""
    revision: str | None = None
    """Commit of a data set in the cache; required there, because a branch moves."""
    part: str | None = None
    """Part of the data set for a cell: a split, `<configuration>/<split>`, or a pattern of files, with `{shift}` and
    `{severity}` for the cell; by default `{shift}/{severity}`, and `{shift}` without severities. A split is
    `<split>.parquet`, `<split>-00000-of-00002.parquet` and so on, tars with such names, or a folder with one split."""
    parts: dict[str, str] = Field(default_factory=dict)
    """Parts for single shifts, in place of `part`."""
    image: str = "image"
    """Column of the images in Parquet files: `{bytes, path}`, or bytes."""
    label: str = "label"
    """Column of the labels in Parquet files: numbers of the classes, or their names."""
    clean: Clean | None = None
    """The uncorrupted images."""
    train: Clean | None = None
    """The images to train source models on."""

    @model_validator(mode="after")
    def _is_pinned(self) -> Self:
        if self.revision is None and not self._folder.is_dir() and _REPOSITORY.fullmatch(self.data_set):
            raise ValueError(
                f"found data_set {self.data_set} without revision, and no folder of this name; expected a folder, or "
                "the commit of the data set in the cache as revision, so that results stay comparable"
            )
        return self

    def open(self, at: SourceContext) -> Source:
        """Return the images."""
        root = self._root()
        images = HubImages(
            root=root,
            parts={cell: self._part(cell, at.shift_set) for cell in at.cells},
            columns=(self.image, self.label),
            classes=at.classes,
            are_numbers=at.shift_set.class_folders == "numbers",
            spill_root=at.spill_root,
        )
        return add_clean_and_train(images, at, clean=self.clean, train=self.train)

    def problems(self, cells: Sequence[Cell], shift_set: ShiftSet) -> Iterator[str]:
        """Yield a sentence if several of *cells* have the same part."""
        yield from find_shared_place("part", ((cell, self._part(cell, shift_set)) for cell in cells))

    def places(self, cell: Cell, shift_set: ShiftSet) -> tuple[Path, ...]:
        """Return the files of *cell*, if the data set is in a folder."""
        return tuple(path for paths in _places(self._folder, self._part(cell, shift_set)) for path in paths)

    @classmethod
    def detect(cls, place: Place) -> Survey | None:
        """Return the survey of a folder of Parquet files whose names or folders name shifts."""
        found = {path: _parse_cell(path.relative_to(place.paths[0])) for path in _parquets(place.folder)}
        if not any(is_shift(name, place.sets) for name, _ in found.values()):
            return None
        cells = {path: cell for path, cell in found.items() if cell[0] not in _USUAL_SPLITS}
        source = cls(kind="huggingface", data_set=str(place.paths[0]))
        first = next(iter(cells.values()))
        images = CellImages(
            num_images=sum(_num_rows(path) for path, cell in cells.items() if cell == first),
            num_classes=len(_read_classes(list(cells), source.label)),
            size=_size_of_first(next(iter(cells)), (source.image, source.label)),
        )
        fitting = choose_shift_set(cells.values(), place, images)
        return Survey(
            source=source,
            shift_set=fitting.shift_set,
            corruptions=fitting.corruptions,
            severities=fitting.severities,
            num_classes=images.num_classes or 0,
            image_size=images.size,
            remarks=fitting.remarks,
        )

    @property
    def _folder(self) -> Path:
        return Path(self.data_set).expanduser()

    def _root(self) -> Path:
        if self._folder.is_dir():
            return self._folder
        expected = "expected a folder, or organisation/name of a data set in huggingface_hub's cache"
        if self.revision is None:
            raise SourceError(f"source.data_set is {self.data_set}, which does not exist; {expected}: correct it")
        try:
            from huggingface_hub import snapshot_download
            from huggingface_hub.errors import LocalEntryNotFoundError
        except ImportError:
            raise SourceError(
                f"source.data_set is {self.data_set}, and huggingface_hub is not installed; expected it, or a folder: "
                "pip install huggingface_hub"
            ) from None
        try:
            found = snapshot_download(self.data_set, repo_type="dataset", revision=self.revision, local_files_only=True)
        except LocalEntryNotFoundError:
            raise SourceError(
                f"{self.data_set} at {self.revision} is not in the cache; {expected}: download it with `hf download "
                f"{self.data_set} --repo-type dataset --revision {self.revision}`"
            ) from None
        return Path(found)

    def _part(self, cell: Cell, shift_set: ShiftSet) -> str:
        usual = self.part or ("{shift}/{severity}" if cell.severity else "{shift}")
        return fill_in_cell(self.parts.get(cell.corruption, usual), cell, shift_set)


class _Sample(NamedTuple):
    """An image with its label."""

    data: bytes
    label: int | str


@dataclass(frozen=True, kw_only=True)
class HubImages(SpilledImages):
    """Images in Parquet files and WebDataset tars; an image's name is its position in the cell."""

    root: Path
    parts: Mapping[Cell, str]
    """Part of the data set for each cell."""
    columns: tuple[str, str]
    """Columns of images and of labels."""
    classes: Callable[[], tuple[str, ...]]
    """Returns the class names of the class map in label order; nothing if there is none."""
    are_numbers: bool = False
    """Whether class names of the data set that are numbers are labels of the class map."""

    @property
    def origin(self) -> Path:
        """The folder or archive of the images."""
        return self.root

    def class_names(self) -> tuple[str, ...]:
        """Return the classes in label order, from the class map or else from the files of all cells."""
        return self.classes() or self._found_classes

    @cached_property
    def _found_classes(self) -> tuple[str, ...]:
        return _read_classes(
            [path for part in self.parts.values() for path in _files(self.root, part)], self.columns[1]
        )

    def version(self, cell: Cell) -> str:
        """Return a digest of the class map and of the files of *cell* with sizes, modification times and classes.

        Raises:
            SourceError: *cell* has no files.
        """
        decisive = (cell.key, self.parts[cell], self.columns, self.classes(), self.are_numbers)
        digest = hashlib.sha256(repr(decisive).encode())
        for path in self._files(cell):
            try:
                status = path.stat()
            except OSError as error:
                raise SourceError(f"{path} cannot be read ({error.strerror}); expected a file of {cell.key}") from error
            name, classes = path.relative_to(self.root), _features(path, self.columns[1])
            digest.update(f"{name}\0{status.st_size}\0{status.st_mtime_ns}\0{classes}\n".encode())
        return digest.hexdigest()

    def _files(self, cell: Cell) -> tuple[Path, ...]:
        part = self.parts[cell]
        if found := _files(self.root, part):
            return found
        split = part.rpartition("/")[2]
        layouts = f"{split}.parquet, {split}-00000-of-00001.parquet, tars with such names, or a folder {part}"
        raise SourceError(
            f"0 files of {cell.key} in {self.root}; expected {part if _is_pattern(part) else layouts}: name its split, "
            "configuration or file pattern by part or parts"
        )

    def spill_cells(self, cells: Sequence[Cell], spill: SpillFolder) -> dict[Cell, Listing]:
        """Copy the images of *cells* into files of *spill*."""
        return {cell: self._spill_cell(cell, spill.file(cell)) for cell in cells}

    def _spill_cell(self, cell: Cell, spill: SpillFile) -> Listing:
        known = self.classes()
        number = 0
        for path in self._files(cell):
            positions = _labels_by_position(path) if path.suffix == ".tar" else None
            own = _read_stated_classes(
                path, self.columns[1], None if positions is None else set(positions.values())
            ).names
            meant = map_names_to_classes(own, known, are_numbers=self.are_numbers, where=path)
            names = tuple(meant[name] for name in own) if own else self.class_names()
            samples = _parquet_samples(path, self.columns) if positions is None else _tar_samples(path, positions)
            for sample in samples:
                said = sample.label
                class_name = meant[said] if isinstance(said, str) else name_of_label(said, names, where=path)
                spill.append(class_name, f"{number:08d}{_suffix(sample.data)}", sample.data)
                number += 1
        return Listing(cell=cell, root=self.root, images=spill.flush_images())


def _files(root: Path, part: str) -> tuple[Path, ...]:
    """Return the files of *part* under *root*; nothing if there are none."""
    places = _places(root, part)
    if len(places) > 1:
        raise SourceError(
            f"{part} matches both {places[0][0]} and {places[1][0]}; expected one place: choose the files by a pattern "
            "in part or parts"
        )
    if not places:
        return ()
    require_read((path.name for path in places[0]), _ENDINGS, where=places[0][0].parent)
    if _is_pattern(part):
        return places[0]
    splits = {_split_of(path): path.name for path in places[0]}
    if len(splits) > 1:
        names = list(splits.values())
        raise SourceError(
            f"{places[0][0].parent} has files of {len(splits)} splits for {part}, such as {names[0]} and {names[1]}; "
            "expected one split: name the split, or a pattern of its files, in part or parts"
        )
    if (total := next(iter(splits))[1]) and len(places[0]) != int(total):
        raise SourceError(
            f"{places[0][0].parent} has {len(places[0]):,} of the {int(total):,} files of {part}; expected all of "
            "them: download the others, or name these by a pattern in part or parts"
        )
    return places[0]


def _places(root: Path, part: str) -> list[tuple[Path, ...]]:
    """Return the files of each place that *part* can mean: a pattern, or a split as a folder or as file names."""
    if _is_pattern(part):
        return [found] if (found := _data_files(root.glob(part))) else []
    folder, _, split = part.strip("/").rpartition("/")
    names = re.compile(rf"{re.escape(split)}(-\d{{5}}-of-\d{{5}}(-[0-9a-f]+)?)?(\.\w+)+")
    places = []
    for base in dict.fromkeys((root / folder, root / folder / "data", root / "data" / folder)):
        places.append(_data_files((base / split).glob("*")))
        places.append(_data_files(path for path in base.glob("*") if names.fullmatch(path.name)))
    return [place for place in places if place]


def _is_pattern(part: str) -> bool:
    return any(mark in part for mark in "*?[") or part.endswith(_ENDINGS)


def _data_files(paths: Iterable[Path]) -> tuple[Path, ...]:
    """Return those of *paths* that are files of a data set, also tars in a form that is not read, in their order."""
    found = (path for path in paths if path.suffix in _ENDINGS or is_tar_like(path.name))
    there = (path for path in found if path.name[0] != "." and path.is_file())
    return tuple(sorted(there, key=lambda path: [natural_order(part) for part in path.parts]))


def _split_of(path: Path) -> tuple[str, str | None, str]:
    """Return the common parts of a split's file names: the name before the number, the total and the ending."""
    match = re.fullmatch(r"(.*?)((?:^|[-_.])\d+)?(?:-of-(\d+)(?:-[0-9a-f]+)?)?", path.stem)
    assert match is not None, "each part may be empty"
    return match[1], match[3], path.suffix


def _parquet_samples(path: Path, columns: tuple[str, str]) -> Iterator[_Sample]:
    from pyarrow.parquet import ParquetFile

    with _reading(path), ParquetFile(path) as file:
        _require_columns(path, columns, file.schema_arrow.names)
        for batch in file.iter_batches(batch_size=_BATCH_SIZE, columns=list(columns)):
            for image, label in zip(batch[columns[0]].to_pylist(), batch[columns[1]].to_pylist(), strict=True):
                data = image.get("bytes") if isinstance(image, dict) else image
                if not isinstance(data, bytes) or not isinstance(label, int | str):
                    raise SourceError(
                        f"{path} has a row without image bytes or without label (label {label!r}); expected both in "
                        "each row: use a file that stores the images themselves, not only their paths"
                    )
                yield _Sample(data, _plain(label, path))


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Turn an error on reading the Parquet file *path* into a `SourceError` that names it."""
    import pyarrow as pa

    try:
        yield
    except (pa.ArrowException, OSError) as error:
        raise SourceError(f"{path} cannot be read ({error}); expected a Parquet file: download it again") from error


def _tar_samples(path: Path, labels: Mapping[int, int | str]) -> Iterator[_Sample]:
    """Yield the samples of a WebDataset tar; *labels* has the label of each image by its position in the tar."""
    with opened_tar(path) as stream:
        for position, _ in enumerate(stream):
            if position in labels:
                yield _Sample(stream.read(), labels[position])


def _labels_by_position(path: Path) -> dict[int, int | str]:
    """Return the label of each image in a tar by the image's position among the members."""
    labels: dict[int, int | str] = {}
    with opened_tar(path) as stream:
        members = GatheredMembers[int, int](keep=int, read=lambda _: stream.read(MAX_LABEL_BYTES))
        for position, entry in enumerate(stream):
            name = parse_member_name(entry.name)
            if name.role != "image" or name.extension.rpartition(".")[2] not in ARRAYS:  # arrays are further members
                members.add(name, position)
    for key, position, said in members.samples(where=path, error=SourceError):
        if said == LabelContent():
            raise SourceError(f"{path}: key {key} has no class; expected a .cls or .json member with the class")
        labels[position] = said.text if said.label is None else said.label
    return labels


def _read_classes(paths: Sequence[Path], column: str) -> tuple[str, ...]:
    """Return the classes of *paths* in label order: the names in them, or the numbers up to the largest label."""
    stated = {path: _read_stated_classes(path, column) for path in paths}
    named = {path: one.names for path, one in stated.items() if one.names}
    if numbered := [path for path in paths if path not in named] if named else []:
        raise SourceError(
            f"{next(iter(named))} names its classes, and {numbered[0]} has only numbers; expected one or the other: "
            "give class_map the classes in the order of these numbers"
        )
    if named:
        return merge_class_names(named.values())
    labels = {number for one in stated.values() for number in one.numbers}
    if paths:
        require_zero_based_labels(
            labels, where=paths[0], otherwise="if they count from 1, subtract 1 from each in the files"
        )
    return number_names(max(labels, default=-1) + 1)


class _StatedClasses(NamedTuple):
    """The classes as stated in a file."""

    names: tuple[str, ...]
    """Class names in label order; empty if labels are only numbers."""
    numbers: frozenset[int]
    """The labels, if they are only numbers."""


def _read_stated_classes(path: Path, column: str, labels: set[int | str] | None = None) -> _StatedClasses:
    """Return the classes stated in *path*; *labels* are its labels, if the caller has read them."""
    if features := _features(path, column):
        return _StatedClasses(features, frozenset())
    labels = _labels(path, column) if labels is None else labels
    names = {label for label in labels if isinstance(label, str)}
    if names and names != labels:
        number = min(label for label in labels if isinstance(label, int))
        raise SourceError(
            f"{path} has the label {number} and the class name {min(names)!r}; expected one or the other in a file: "
            "correct its labels"
        )
    require_plain_order(names, where=path)
    return _StatedClasses(label_order(names), frozenset(label for label in labels if isinstance(label, int)))


def _num_rows(path: Path) -> int:
    from pyarrow.parquet import read_metadata

    with _reading(path):
        return int(read_metadata(path).num_rows)


def _features(path: Path, column: str) -> tuple[str, ...]:
    """Return the class names in the Hub's metadata of a Parquet file; nothing if there are none."""
    from pyarrow.parquet import read_schema

    if path.suffix != ".parquet":
        return ()
    with _reading(path):
        metadata = read_schema(path).metadata or {}
    try:
        features = json.loads(metadata.get(b"huggingface", b"{}")).get("info", {}).get("features", {})
        return tuple(map(str, features.get(column, {}).get("names", ())))
    except (ValueError, AttributeError, TypeError):
        return ()  # metadata of another form: the labels are read instead


def _labels(path: Path, column: str) -> set[int | str]:
    """Return the labels in *path*; from a Parquet file, only the label column is read."""
    if path.suffix == ".tar":
        return set(_labels_by_position(path).values())
    from pyarrow.parquet import ParquetFile

    with _reading(path), ParquetFile(path) as file:
        _require_columns(path, (column,), file.schema_arrow.names)
        batches = file.iter_batches(batch_size=_LABELS_AT_ONCE, columns=[column])
        found = (label for batch in batches for label in batch[column].unique().to_pylist())
        return {_plain(label, path) for label in found if isinstance(label, int | str)}


def _plain(label: int | str, path: Path) -> int | str:
    """Return *label* in *path*; of a number that is text in another form than digits, the digits."""
    try:
        return name_or_digits(label) if isinstance(label, str) else label
    except ValueError as error:
        raise SourceError(f"{path} {error}; expected the name or the number of a class: correct its labels") from None


def _require_columns(path: Path, columns: Sequence[str], found: Sequence[str]) -> None:
    if missing := [column for column in columns if column not in found]:
        raise SourceError(
            f"{path} has the columns {', '.join(found)}; expected {', '.join(missing)}: set the names of the columns "
            "in image and label"
        )


def _suffix(data: bytes) -> str:
    """Return the suffix of an image file by its first bytes; damage is detected when the shards are written."""
    known = {b"\x89PNG": ".png", b"RIFF": ".webp", b"BM": ".bmp"}
    return next((suffix for start, suffix in known.items() if data.startswith(start)), ".jpg")


def _parquets(folder: Path | None) -> list[Path]:
    return sorted(folder.rglob("[!.]*.parquet")) if folder else []


def _parse_cell(path: Path) -> tuple[str, int]:
    """Return the shift and the severity named by a file's folders and split: `<shift>/<severity>` or `<shift>`."""
    parts = [*path.parts[:-1], path.stem.partition("-")[0]]
    for end in range(len(parts), 0, -1):
        if parts[end - 1].isdecimal() and end > 1:
            return parts[end - 2], int(parts[end - 1])
    return (parts[0] if parts[0] != "data" else parts[-1]), 0


def _size_of_first(path: Path, columns: tuple[str, str]) -> tuple[int, int] | None:
    first = next(_parquet_samples(path, columns), None)
    if first is None:
        return None
    try:
        header = read_image_header(first.data)
    except ValueError as error:
        raise SourceError(f"{path}: {error}; expected an intact image first: restore it") from error
    return header.height, header.width
