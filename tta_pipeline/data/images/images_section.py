"""Base classes of the kinds of source: sections of a benchmark file that open the source they describe."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, Self

from pydantic import JsonValue

from tta_pipeline.data.datasets.dataset import Dataset
from tta_pipeline.data.images.choose_dataset import Place
from tta_pipeline.data.images.image_options import ImageOptions
from tta_pipeline.data.images.listing import Observed, Source
from tta_pipeline.data.labels.shipped_lists import shipped_classes, shipped_output_map
from tta_pipeline.data.labels.splits import Split
from tta_pipeline.domain.cells import Cell
from tta_pipeline.util.config_model import ConfigModel
from tta_pipeline.util.progress import Reporter, quiet_reporter

Cells = tuple[Cell, ...]


_USUAL_SIZE = 224
"""Height and width, in pixels, of the images of most models."""


@dataclass(frozen=True, kw_only=True)
class ImagesContext:
    """Everything that a section needs to open its source and does not contain itself."""

    cells: tuple[Cell, ...]
    """Cells of the source."""
    dataset: Dataset
    spill_root: Path
    """Folder for temporary files of sources that must convert or unpack their images."""
    generated_root: Path
    """Folder of the digits that this project generates."""
    image_size: int
    """Height and width of generated images in pixels."""
    classes: Callable[[], tuple[str, ...]] = tuple
    """Returns the class names of the class map in label order; nothing if there is none."""
    progress: Reporter = quiet_reporter
    """Reports the MiB read from an archive."""


class ImagesSection(ConfigModel, ABC):
    """A section that describes a source of images or shards."""

    kind: str
    is_generated: ClassVar[bool] = False
    """Whether this project makes the corrupted images."""
    is_drawn: ClassVar[bool] = False
    """Whether this project makes all images, including the clean ones, so that no source files can be observed."""
    has_shards: ClassVar[bool] = False
    """Whether the source already consists of shards, which are linked to and adopted."""

    @property
    def recipe(self) -> dict[str, JsonValue] | None:
        """Every setting that decides a byte of images that this project makes; None if it makes none."""
        return None

    @property
    def is_remote(self) -> bool:
        """Whether the source is at URLs and is streamed."""
        return False

    @property
    def has_loose_train(self) -> bool:
        """Whether each training image is a separate file that is read in place."""
        return not getattr(getattr(self, "train", None), "is_archive", True)

    @property
    def has_clean(self) -> bool:
        """Whether there are uncorrupted test images."""
        return bool(getattr(self, "clean", None))

    @property
    def has_train(self) -> bool:
        """Whether there are images to train source models on."""
        return bool(getattr(self, "train", None))

    @abstractmethod
    def open(self, at: ImagesContext) -> Observed:
        """Return the source that the section describes: images, or third-party shards."""

    def problems(self, cells: Sequence[Cell], dataset: Dataset) -> Iterator[str]:
        """Yield a sentence for each problem of the benchmark's *cells* with this source."""
        del cells, dataset
        yield from ()

    @abstractmethod
    def places(self, cell: Cell, dataset: Dataset) -> tuple[Path, ...]:
        """Return the folder or files that *cell* comes from; empty if they are unknown."""

    def own_place(self, cell: Cell, dataset: Dataset) -> Path | None:
        """Return the folder or file that exists exactly if *cell* does; None if only reading would show it."""
        del cell, dataset
        return None

    @classmethod
    def detect(cls, place: Place) -> "Survey | None":
        """Return the survey of *place* for `new-benchmark`; None if the source there is not of this kind.

        Raises:
            ImagesError: the source is of this kind, but no benchmark can be made of it.
        """
        del place
        return None


class ConvertedSection(ImagesSection):
    """A section for images that are still to be written as shards."""

    options: ClassVar[frozenset[str]] = frozenset()
    """Options of the command `shards make`, as fields of `ImageOptions`, that apply to the kind."""

    @abstractmethod
    def open(self, at: ImagesContext) -> Source:
        """Return the images that the section describes."""

    @classmethod
    def from_options(cls, options: ImageOptions) -> Self | None:
        """Return the section for *options* of the command `shards make`; None if the source is not of this kind.

        Raises:
            ImagesError: the source is of this kind, but is faulty.
        """
        del options
        return None

    @property
    def is_one_set(self) -> bool:
        """Whether the source has the images of a single cell."""
        return False

    @property
    def one_pass_bytes(self) -> int:
        """Bytes that are read in one pass before the images of any cell."""
        return 0

    @contextmanager
    def opened_whole(self, at: ImagesContext, prefixes: Sequence[str] = ()) -> Iterator[tuple[Source, Cells]]:
        """Yield the source with its existing cells whose paths begin with one of *prefixes*."""
        cells = filter_by_prefix(at.cells, prefixes)
        yield self.open(replace(at, cells=cells)), cells


def find_shared_place(field: str, places: Iterable[tuple[Cell, object]]) -> Iterator[str]:
    """Yield a sentence on the first of *places*, given by *field*, that two cells share: both would get its images."""
    owners: dict[str, Cell] = {}
    for cell, place in places:
        if (owner := owners.setdefault(str(place), cell)) != cell:
            yield (
                f"images.{field} names {place} for {owner.key} and for {cell.key}; expected different images for each "
                "cell: write {shift} and {severity} instead of the cell's shift and severity"
            )
            return


def filter_by_prefix(cells: Cells, prefixes: Sequence[str]) -> Cells:
    """Return the *cells* whose path begins with one of *prefixes*, such as `fog` or `fog/5`; all if there are none."""
    paths = [prefix.strip("/") for prefix in prefixes]
    return tuple(cell for cell in cells if not paths or any(f"{cell.path}/".startswith(f"{path}/") for path in paths))


@dataclass(frozen=True, kw_only=True)
class Survey:
    """Findings about a source."""

    source: ImagesSection
    dataset: Dataset
    corruptions: tuple[str, ...]
    severities: tuple[int, ...]
    num_classes: int
    """Number of classes of the images that were found."""
    image_size: tuple[int, int] | None
    """Height and width of the first image in pixels; None if no image was read."""
    other_size: tuple[int, int] | None = None
    """Height and width of an image that has another size; None if all images read have the same size."""
    remarks: tuple[str, ...] = ()
    """Remarks for the user, one sentence each."""

    @classmethod
    def of_split(
        cls,
        source: ImagesSection,
        dataset: Dataset,
        split: Split,
        *,
        image_size: tuple[int, int] | None,
        other_size: tuple[int, int] | None,
    ) -> Self:
        """Return the survey of a dataset whose *split* lists the images."""
        return cls(
            source=source,
            dataset=dataset,
            corruptions=dataset.names,
            severities=dataset.cell_severities,
            num_classes=len(split.classes),
            image_size=image_size,
            other_size=other_size,
        )

    @property
    def num_labels(self) -> int:
        """Number of classes of the class map; few of them may have images here."""
        return len(shipped_classes(self.dataset.classes)) if self.dataset.classes else self.num_classes

    @property
    def has_several_outputs(self) -> bool:
        """Whether several outputs of an ImageNet model stand for a class."""
        return bool(self.dataset.classes and shipped_output_map(self.dataset.classes))

    @property
    def misfit(self) -> str:
        """Why images must be resized and cropped to form a batch; empty if they need not."""
        if self.image_size is None:
            return ""
        height, width = self.image_size
        if self.other_size is not None:
            return f"images have several sizes, such as {height}x{width} and {'x'.join(map(str, self.other_size))}"
        return "" if height == width else "the first image is not square"

    @property
    def is_square(self) -> bool:
        """Whether the images that were read are square."""
        return all(height == width for height, width in filter(None, (self.image_size, self.other_size)))

    @property
    def least_side(self) -> int:
        """The shortest side of an image that was read, in pixels; without an image, the usual input size of models."""
        sides: list[int] = [*(self.image_size or (_USUAL_SIZE,)), *(self.other_size or ())]
        return min(sides)

    @property
    def fitting_size(self) -> int:
        """Height and width in pixels that all images have, or can be given without enlarging them much."""
        return min(self.least_side, _USUAL_SIZE) if self.misfit else self.least_side
