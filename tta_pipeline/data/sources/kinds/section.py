"""What every kind of source has in common: a section of a benchmark file that opens what it names."""

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Self

from pydantic import JsonValue

from tta_pipeline.data.shifts.shift_set import ShiftSet
from tta_pipeline.data.sources.kinds.options import SourceOptions
from tta_pipeline.errors import SourceError
from tta_pipeline.util.partitions import Cell
from tta_pipeline.util.progress import Reporter, quiet
from tta_pipeline.util.sections import Section

if TYPE_CHECKING:
    from tta_pipeline.data.sources.kinds.survey import Place, Survey
    from tta_pipeline.data.sources.listing import Observed, Source


Cells = tuple[Cell, ...]


@dataclass(frozen=True, kw_only=True)
class SourceContext:
    """What a section is opened with: everything that does not stand in it."""

    cells: tuple[Cell, ...]
    """Cells that make up the source."""
    shift_set: ShiftSet
    spill_root: Path
    """Folder for the temporary files of sources whose images are not on disk as they are needed."""
    generated_root: Path
    """Folder of the images that this project draws."""
    image_size: int
    """Height and width of the images that are generated, in pixels."""
    classes: Callable[[], tuple[str, ...]] = tuple
    """Gives the class names in label order, if they are named anywhere; else nothing."""
    progress: Reporter = quiet
    """Reports how much of an archive has been read."""


class SourceSection(Section, ABC):
    """A section that says where images or shards come from."""

    kind: str
    is_generated: ClassVar[bool] = False
    """Whether this project makes the corrupted images."""
    is_drawn: ClassVar[bool] = False
    """Whether this project makes all images, the clean ones too, so that none are there to be observed."""
    has_shards: ClassVar[bool] = False
    """Whether there are shards already, which are linked to and adopted."""

    clean_layout: ClassVar[str] = "a folder of class folders, or a tar"
    """What `clean` can be, in words; empty: there is no such field to fill in."""
    train_layout: ClassVar[str] = clean_layout
    """What `train` can be, in words."""

    @property
    def recipe(self) -> dict[str, JsonValue] | None:
        """Every setting that decides a byte of the images that this project makes; None if it makes none."""
        return None

    @property
    def is_remote(self) -> bool:
        """Whether it is at URLs, and streamed."""
        return False

    @property
    def has_loose_files(self) -> bool:
        """Whether each image is a file of its own that stays where it is."""
        return False

    @property
    def has_loose_train(self) -> bool:
        """Whether each training image is a file of its own that stays where it is."""
        return not getattr(getattr(self, "train", None), "is_archive", True)

    @property
    def has_clean(self) -> bool:
        """Whether there are uncorrupted test images."""
        return getattr(self, "clean", None) is not None

    @property
    def has_train(self) -> bool:
        """Whether there are images to train source models on."""
        return getattr(self, "train", None) is not None

    @abstractmethod
    def open(self, at: SourceContext) -> "Observed":
        """Return what the section names: images, or the shards of others."""

    def problems(self, cells: Sequence[Cell], shift_set: ShiftSet) -> Iterator[str]:
        """Yield what is wrong with *cells*, the cells of the benchmark, for such a source."""
        del cells, shift_set
        yield from ()

    @abstractmethod
    def places(self, cell: Cell, shift_set: ShiftSet) -> tuple[Path, ...]:
        """Return the folder or files that *cell* comes from; none if no place is known."""

    def own_place(self, cell: Cell, shift_set: ShiftSet) -> Path | None:
        """Return the folder or file whose existence shows that *cell* is there; None if only reading would show it."""
        del cell, shift_set
        return None

    @classmethod
    def recognised(cls, place: "Place") -> "Survey | None":
        """Return what `new-benchmark` finds at *place*; None if it is not of this kind.

        Raises:
            SourceError: it is of this kind, but no benchmark can be made of it.
        """
        del place
        return None

    def lines(self, found: "Survey") -> Iterator[str]:
        """Yield the lines of a new benchmark file under `source:`, with comments."""
        del found
        for field, value in self.model_dump(mode="json", exclude_defaults=True).items():
            yield f"  {field}: {json.dumps(value, ensure_ascii=False)}"


def quoted(path: Path) -> str:
    """Return *path* as YAML reads it back, whatever characters it has.

    Raises:
        SourceError: it has characters that YAML cannot hold.
    """
    text = str(path)
    if not text.isprintable():
        raise SourceError(f"{text!r} has characters that no benchmark file can hold; expected others: rename it")
    return json.dumps(text, ensure_ascii=False)


class ImagesSection(SourceSection):
    """A section that names images, which are written as shards."""

    options: ClassVar[frozenset[str]] = frozenset()
    """Options of the verb `shard`, fields of `SourceOptions`, that the kind takes."""

    @abstractmethod
    def open(self, at: SourceContext) -> "Source":
        """Return the images that the section names."""

    @classmethod
    def from_options(cls, options: SourceOptions) -> Self | None:
        """Return the section that *options* of the verb `shard` describe; None if the source is not of this kind.

        Raises:
            SourceError: the source is of this kind, but something is wrong with it.
        """
        del options
        return None

    @property
    def is_one_set(self) -> bool:
        """Whether the source is laid out as the images of a single cell."""
        return False

    @property
    def one_pass_bytes(self) -> int:
        """Bytes that are read in one pass before the images of any cell."""
        return 0

    @contextmanager
    def opened_whole(self, at: SourceContext, prefixes: Sequence[str] = ()) -> Iterator[tuple["Source", Cells]]:
        """Yield the source with the cells that are there, of those that begin with one of *prefixes*."""
        cells = beginning_with(at.cells, prefixes)
        yield self.open(replace(at, cells=cells)), cells


def shared(field: str, places: Iterable[tuple[Cell, object]]) -> Iterator[str]:
    """Yield the first of *places*, named by *field*, that two cells have: they would get the same images."""
    owners: dict[str, Cell] = {}
    for cell, place in places:
        if (owner := owners.setdefault(str(place), cell)) != cell:
            yield (
                f"source.{field} names {place} for {owner.key} and for {cell.key}; expected images of its own for each "
                "cell: put {shift} and {severity} where its shift and severity stand"
            )
            return


def beginning_with(cells: Cells, prefixes: Sequence[str]) -> Cells:
    """Return the *cells* whose path begins with one of *prefixes*, such as `fog` or `fog/5`; all if there are none."""
    paths = [prefix.strip("/") for prefix in prefixes]
    return tuple(cell for cell in cells if not paths or any(f"{cell.path}/".startswith(f"{path}/") for path in paths))
