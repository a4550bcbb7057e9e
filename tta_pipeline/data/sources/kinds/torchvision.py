"""The kind `torchvision`: any data set class whose items are (PIL image, int)."""

import hashlib
import importlib
import json
import operator
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from tta_pipeline.data.images import encode_png
from tta_pipeline.data.shifts.shift_set import ShiftSet
from tta_pipeline.data.sources.kinds.clean_images import Clean, add_clean_and_train
from tta_pipeline.data.sources.listing import Listing, Source
from tta_pipeline.data.sources.numbered_classes import map_names_to_classes, merge_class_names, name_of_label
from tta_pipeline.data.sources.source_section import ImagesSection, SourceContext, fill_in_cell, find_shared_place
from tta_pipeline.data.sources.spill import SpilledImages, SpillFile, SpillFolder
from tta_pipeline.domain.cells import Cell
from tta_pipeline.errors import SourceError
from tta_pipeline.util.own_code import describe_raised
from tta_pipeline.util.source_code import INSTALLED, find_module, import_from_here, source_sha256

Argument = bool | int | float | str | None


class TorchvisionSource(ImagesSection):
    """A data set of torchvision, or the user's own class whose items are (PIL image, int).

    Images are stored as PNG, without loss. In text arguments, `{shift}` and `{severity}` stand for the cell's shift and
    severity.
    """

    kind: Literal["torchvision"]
    dataset: Annotated[str, Field(pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$")]
    """`module:class`, such as `torchvision.datasets:CIFAR10`; its code is executed."""
    arguments: dict[str, Argument] = Field(default_factory=dict)
    """Arguments of the class by name, such as `{root: /data, train: false}`; torchvision downloads nothing without
    `download: true`."""
    clean: Clean | None = None
    """The uncorrupted images."""
    train: Clean | None = None
    """The images to train source models on."""

    def open(self, at: SourceContext) -> Source:
        """Return the images."""
        images = DatasetImages(
            dataset=self.dataset,
            arguments={cell: self._arguments(cell, at.shift_set) for cell in at.cells},
            classes=at.classes,
            are_numbers=at.shift_set.class_folders == "numbers",
            spill_root=at.spill_root,
        )
        return add_clean_and_train(images, at, clean=self.clean, train=self.train)

    def problems(self, cells: Sequence[Cell], shift_set: ShiftSet) -> Iterator[str]:
        """Yield a sentence if several of *cells* have the same arguments."""
        yield from find_shared_place("arguments", ((cell, self._arguments(cell, shift_set)) for cell in cells))

    def places(self, cell: Cell, shift_set: ShiftSet) -> tuple[Path, ...]:
        """Return the argument `root` of the data set, if it has one."""
        root = self._arguments(cell, shift_set).get("root")
        return (Path(root),) if isinstance(root, str) else ()

    def _arguments(self, cell: Cell, shift_set: ShiftSet) -> dict[str, Argument]:
        filled = {
            name: fill_in_cell(value, cell, shift_set) if isinstance(value, str) else value
            for name, value in self.arguments.items()
        }
        root = filled.get("root")
        return filled | ({"root": str(_expanded(root))} if isinstance(root, str) else {})


@dataclass(frozen=True, kw_only=True)
class DatasetImages(SpilledImages):
    """Images of a data set class; an image's name is its index."""

    dataset: str
    """`module:class`."""
    arguments: Mapping[Cell, Mapping[str, Argument]]
    classes: Callable[[], tuple[str, ...]]
    """Returns the class names of the class map in label order; nothing if there is none."""
    are_numbers: bool = False
    """Whether class names of the data set that are numbers are labels of the class map."""

    @property
    def origin(self) -> str:
        """The data set class."""
        return self.dataset

    def class_names(self) -> tuple[str, ...]:
        """Return the classes in label order, from the class map or else from the data sets of all cells."""
        return self.classes() or merge_class_names(
            self._own_names(self._create_data_set(cell)) for cell in self.arguments
        )

    def version(self, cell: Cell) -> str:
        """Return a digest of the class and its code, the arguments, all files at paths in them, and the class map.

        Raises:
            SourceError: the code of the user's own class cannot be hashed, or was changed after its import.
        """
        arguments = self.arguments[cell]
        decisive = [self.dataset, _own_code_sha256(self.dataset), cell.key, dict(arguments), self.classes()]
        digest = hashlib.sha256(json.dumps([*decisive, self.are_numbers], sort_keys=True).encode())
        for _, value in sorted(arguments.items()):
            for facts in _files_at(_expanded(value)) if isinstance(value, str) else ():
                digest.update(f"{facts}\n".encode("utf-8", "surrogateescape"))
        return digest.hexdigest()

    def spill_cells(self, cells: Sequence[Cell], spill: SpillFolder) -> dict[Cell, Listing]:
        """Write the images of *cells* into files of *spill* as PNG."""
        return {cell: self._spill_cell(cell, spill.file(cell)) for cell in cells}

    def _spill_cell(self, cell: Cell, spill: SpillFile) -> Listing:
        made, known = self._create_data_set(cell), self.classes()
        names = known
        if own := _classes_of(made) if known else self._own_names(made):
            meant = map_names_to_classes(own, known, are_numbers=self.are_numbers, where=self.dataset)
            names = tuple(meant[name] for name in own)
        for index in range(len(made)):
            image, label = self._sample(made, index)
            class_name = name_of_label(label, names, where=f"{self.dataset}[{index}]")
            spill.append(class_name, f"{index:08d}.png", image)
        return Listing(cell=cell, root=self.spill_root, images=spill.flush_images())

    def _own_names(self, made: Any) -> tuple[str, ...]:
        if names := _classes_of(made):
            return names
        raise SourceError(
            f"{self.dataset} has no attribute `classes`; expected names: give class_map a file with the classes"
        )

    def _sample(self, made: Any, index: int) -> tuple[bytes, int]:
        from PIL import Image

        try:
            image, label = made[index]
            number = operator.index(label)  # unlike int, this refuses 3.5
        except Exception as error:  # whatever a data set raises
            raise SourceError(
                f"{self.dataset}[{index}] raised {describe_raised(error)}; expected (PIL image, int): "
                "correct its arguments"
            ) from error
        if not isinstance(image, Image.Image):
            raise SourceError(
                f"{self.dataset}[{index}] gave {type(image).__name__}; expected a PIL image: leave its transform out"
            )
        return encode_png(image), number

    def _create_data_set(self, cell: Cell) -> Any:
        module, _, name = self.dataset.partition(":")
        import_from_here()
        _own_code_sha256(self.dataset)  # records the code as imported
        try:
            kind = getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError) as error:
            raise SourceError(
                f"source.dataset is {self.dataset}, which cannot be imported ({error}); expected module:class, such as "
                "torchvision.datasets:CIFAR10"
            ) from error
        try:
            return kind(**self.arguments[cell])
        except Exception as error:  # whatever a data set raises
            raise SourceError(
                f"{self.dataset} raised {describe_raised(error)} with {dict(self.arguments[cell])}; expected "
                "arguments that create the data set: correct source.arguments"
            ) from error


def _own_code_sha256(dataset: str) -> str | None:
    """Return the hash of the code of *dataset*; None for an installed package, whose version is recorded."""
    found = find_module(dataset.partition(":")[0])
    if found is None or found.origin is None or INSTALLED.intersection(Path(found.origin).parts):
        return None
    try:
        return source_sha256(dataset)
    except ValueError as error:
        raise SourceError(f"source.dataset {dataset}: {error}") from None


def _expanded(path: str) -> Path:
    """Return *path* with `~` expanded, or unchanged if the user is unknown."""
    return Path(os.path.expanduser(path))  # noqa: PTH111 - Path raises an error for a user that it does not know


def _files_at(path: Path) -> Iterator[tuple[str, int, int]]:
    """Yield name, size and modification time of the file *path*, or of each file under the folder *path*.

    Links to folders are followed, as in torchvision. Nothing is yielded if *path* does not exist.
    """
    folders = os.walk(path, followlinks=True) if path.is_dir() else [(str(path.parent), [], [path.name])]
    for folder, inner, names in folders:
        inner.sort()
        place_in = os.path.relpath(folder, path)
        for name in sorted(names):
            place = os.path.join(folder, name)  # noqa: PTH118 - a Path for each of a million files takes long
            if os.path.exists(place):  # noqa: PTH110
                status = os.stat(place)  # noqa: PTH116
                yield f"{place_in}/{name}", status.st_size, status.st_mtime_ns


def _classes_of(made: Any) -> tuple[str, ...]:
    """Return the class names of a data set; WordNet ids for ImageNet, where some names stand for two classes."""
    names: Any = getattr(made, "wnids", None) or getattr(made, "classes", ())
    return tuple(map(str, names))
