"""The kind `python`: images that a function of the user yields."""

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import ClassVar, Literal, Self

from pydantic import Field, JsonValue, field_validator

from tta_pipeline.data.datasets.dataset import Dataset
from tta_pipeline.data.images.image_options import ImageOptions
from tta_pipeline.data.images.images_of_python import YieldedImage, check_yielded
from tta_pipeline.data.images.images_section import ConvertedSection, ImagesContext
from tta_pipeline.data.images.listing import Listing, Source
from tta_pipeline.data.images.numbered_classes import resolve_class_numbers
from tta_pipeline.data.images.spill import SpilledImages, SpillFile, SpillFolder
from tta_pipeline.data.labels.class_map import label_order
from tta_pipeline.domain.cells import Cell
from tta_pipeline.errors import ImagesError
from tta_pipeline.util.own_code import describe_raised
from tta_pipeline.util.source_code import source_sha256
from tta_pipeline.util.user_functions import find_function_file, load_function


class PythonSection(ConvertedSection):
    """Images that your Python function yields, from a library such as torchvision or `datasets`, or in your format.

    `def images(corruption, severity, **arguments)` yields a tuple per image of this cell: its class, its file name, and
    the bytes or the path of the file, or a PIL image (stored as lossless PNG). Without `class_map`, the function also
    runs once per cell to find the classes, which are then sorted. Shards are written again if its code, the arguments,
    or a file at a path among the arguments change.
    """

    kind: Literal["python"]
    function: str
    """`module:name` of the function; its code is executed."""
    arguments: dict[str, JsonValue] = Field(default_factory=dict)
    """Further arguments of the function by name, such as `{root: /data}`."""
    clean: bool = False
    """Set this if the function yields the uncorrupted images for corruption `clean` and severity 0."""
    train: bool = False
    """Set this if the function yields training images for corruption `train` and severity 0."""

    @field_validator("function")
    @classmethod
    def _found(cls, function: str) -> str:
        find_function_file(function)
        return function

    def open(self, at: ImagesContext) -> Source:
        """Return the images."""
        images = PythonImages(section=self, cells=at.cells, classes=at.classes, spill_root=at.spill_root)
        return resolve_class_numbers(images, at)

    @property
    def recipe(self) -> dict[str, JsonValue]:
        """The function with its code, and its arguments.

        Raises:
            ImagesError: the code is gone, or was changed after its import.
        """
        try:
            sha256 = source_sha256(self.function)
        except ValueError as error:
            raise ImagesError(f"images.function {self.function}: {error}") from None
        return {"function": self.function, "source_sha256": sha256, "arguments": self.arguments}

    def places(self, cell: Cell, dataset: Dataset) -> tuple[Path, ...]:
        """Return nothing: the function has no known files."""
        del cell, dataset
        return ()

    options: ClassVar[frozenset[str]] = frozenset({"function", "arguments"})

    @classmethod
    def from_options(cls, options: ImageOptions) -> Self | None:
        """Return the section of a function."""
        if options.function is None:
            return None
        return cls.model_validate({"kind": "python", "function": options.function, "arguments": options.arguments})

    @property
    def is_one_set(self) -> bool:
        """True: `shards make` calls the function for the cell that the output names."""
        return True


@dataclass(frozen=True, kw_only=True)
class PythonImages(SpilledImages):
    """Images that the function of *section* yields for each requested cell."""

    section: PythonSection
    cells: tuple[Cell, ...]
    """Cells that decide the classes of the source if there is no class map."""
    classes: Callable[[], tuple[str, ...]]
    """Returns the class names of the class map in label order; nothing if there is none."""

    @property
    def origin(self) -> str:
        """The function."""
        return self.section.function

    def class_names(self) -> tuple[str, ...]:
        """Return the classes in label order, from the class map or, without one, from the images of all cells."""
        return self.classes() or self._found_classes

    @cached_property
    def _found_classes(self) -> tuple[str, ...]:
        return label_order({image.class_name for cell in self.cells for image in self._images(cell)})

    def version(self, cell: Cell) -> str:
        """Return a digest of *cell*, the code, the arguments and every file at a path among them."""
        return hashlib.sha256(f"{cell.key} {self._version}".encode()).hexdigest()

    @cached_property
    def _version(self) -> str:
        digest = hashlib.sha256(json.dumps(self.section.recipe, sort_keys=True).encode())
        for value in self.section.arguments.values():
            is_path = isinstance(value, str) and os.path.exists(value)  # noqa: PTH110 - Path fails for a long text
            for stamp in _stamps(Path(str(value))) if is_path else ():
                digest.update(f"{stamp}\n".encode("utf-8", "surrogateescape"))
        return digest.hexdigest()

    def spill_cells(self, cells: Sequence[Cell], spill: SpillFolder) -> dict[Cell, Listing]:
        """Copy the images of *cells* into files of *spill*."""
        return {cell: self._spill_cell(cell, spill.file(cell)) for cell in cells}

    def _spill_cell(self, cell: Cell, file: SpillFile) -> Listing:
        for image in self._images(cell):
            file.append(image.class_name, image.file_name, image.read())
        images = file.flush_images()
        if not images:
            raise ImagesError(
                f"{self.origin} yielded no images for {cell.key}; expected at least one: correct the function, or "
                "leave the cell out"
            )
        return Listing(cell=cell, root=Path(self.origin), images=images)

    def _images(self, cell: Cell) -> Iterator[YieldedImage]:
        try:
            yield from check_yielded(self._yielded(cell))
        except ImagesError as error:
            raise ImagesError(f"{self.origin} for {cell.key}: {error}") from error

    def _yielded(self, cell: Cell) -> Iterator[object]:
        function = load_function(self.section.function)
        try:
            yield from function(cell.corruption, cell.severity, **self.section.arguments)
        except Exception as error:  # whatever a user's function raises
            raise ImagesError(
                f"it raised {describe_raised(error)}; expected images: correct the function or images.arguments"
            ) from error


def _stamps(path: Path) -> Iterator[tuple[str, int, int]]:
    """Yield place, size and time of the file *path*, or of each file under the folder *path*."""
    files = sorted(path.rglob("*")) if path.is_dir() else [path]
    for file in files:
        if file.is_file():
            status = file.stat()
            yield file.relative_to(path).as_posix(), status.st_size, status.st_mtime_ns
