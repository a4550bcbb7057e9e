"""Conversion of a source into shard sets, cell by cell; shared by the asset and the command line."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

from pydantic import JsonValue

from tta_pipeline.benchmarks.benchmark import Benchmark
from tta_pipeline.benchmarks.open_images import load_class_map, open_images
from tta_pipeline.benchmarks.shard_settings import ShardSettings
from tta_pipeline.data.images.listing import Listing, Source
from tta_pipeline.data.labels.class_map import ClassMap
from tta_pipeline.domain.cells import Cell
from tta_pipeline.domain.locations import Locations
from tta_pipeline.shards.set_facts import WriterRecord
from tta_pipeline.shards.shard_set_writing import Target, find_unchanged, write_shards
from tta_pipeline.util.processes import Workers
from tta_pipeline.util.progress import Reporter


@dataclass(frozen=True, kw_only=True)
class ConversionResult:
    """The result of converting one cell."""

    record: WriterRecord
    was_written: bool
    strays: tuple[Path, ...] = ()


@dataclass(frozen=True, kw_only=True)
class CellTask:
    """The work on one cell."""

    existing: WriterRecord | None
    """Record of the shards that exist and need not be written."""
    listing: Listing | None
    """The images, if shards must be written."""
    target: Target
    version: str
    class_map: ClassMap
    settings: ShardSettings


@dataclass(frozen=True, kw_only=True)
class Conversion:
    """A source with the folders and settings of its shards."""

    source: Source
    source_kind: str
    generated: bool
    recipe: dict[str, JsonValue] | None = None
    """See `SourceFacts.recipe`."""
    benchmark_name: str
    class_map: ClassMap
    settings: Callable[[Cell], ShardSettings]
    """How the shards of a cell are made."""
    folder: Callable[[Cell], Path]
    """The folder of a cell's shards."""
    progress: Reporter
    """Reports progress on the images of each cell."""

    def session(self, cells: Sequence[Cell]) -> "Session":
        """Return a session that prepares the work on each of *cells*; no other cell may be requested."""
        return Session(self, cells)

    def task(self, cell: Cell, version: str, existing: WriterRecord | None) -> CellTask:
        """Return the work on *cell*; its images must be prepared unless *existing* describes its shards."""
        return CellTask(
            existing=existing,
            listing=self.source.listing(cell) if existing is None else None,
            target=self._target(cell),
            version=version,
            class_map=self.class_map,
            settings=self.settings(cell),
        )

    def find_unchanged(self, cell: Cell, version: str) -> WriterRecord | None:
        """Return the record of the shards of *cell* if a conversion would write the same shards, or None."""
        return find_unchanged(self._target(cell), cell, version, self.class_map, self.settings(cell))

    def _target(self, cell: Cell) -> Target:
        return Target(
            folder=self.folder(cell),
            benchmark_name=self.benchmark_name,
            source_kind=self.source_kind,
            generated=self.generated,
            recipe=self.recipe,
        )


class Session:
    """Prepares the work on each of its cells; cells that a source prepares together stay open together."""

    def __init__(self, conversion: Conversion, cells: Sequence[Cell]) -> None:
        self._conversion = conversion
        self._cells = cells
        self._group: tuple[Cell, ...] = ()
        self._standing: dict[Cell, _CellState] = {}
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stack.close()

    def has_images_of(self, cell: Cell) -> bool:
        """Return whether the images of *cell* are open, or not needed because its shards exist.

        If not, `task` closes the images of the previous group, which must not be read after that.
        """
        return cell in self._group or self._get_state(cell).record is not None

    def task(self, cell: Cell) -> CellTask:
        """Return the work on *cell*."""
        if not self.has_images_of(cell):
            self._open_group_of(cell)
        return self._conversion.task(cell, *self._get_state(cell))

    def _open_group_of(self, cell: Cell) -> None:
        self._stack.close()
        source = self._conversion.source
        others = {other: self._check_state(other) for other in source.together(cell, self._cells) if other != cell}
        # Take the version before the images are read. Cells whose shards exist now are checked again in their turn.
        self._standing |= {other: standing for other, standing in others.items() if standing.record is None}
        self._group = (cell, *(other for other, standing in others.items() if standing.record is None))
        self._stack.enter_context(source.prepared(self._group))

    def _get_state(self, cell: Cell) -> "_CellState":
        if cell not in self._standing:
            self._standing[cell] = self._check_state(cell)
        return self._standing[cell]

    def _check_state(self, cell: Cell) -> "_CellState":
        version = self._conversion.source.version(cell)
        return _CellState(version, self._conversion.find_unchanged(cell, version))


class _CellState(NamedTuple):
    """The version of a cell's images, and the record of its shards if it has that version."""

    version: str
    record: WriterRecord | None


def convert(task: CellTask, progress: Reporter, workers: Workers | None = None) -> ConversionResult:
    """Write the shards of a cell, unless they exist."""
    if task.existing is not None:
        return ConversionResult(record=task.existing, was_written=False)
    assert task.listing is not None
    record = write_shards(
        task.listing,
        task.target,
        version=task.version,
        class_map=task.class_map,
        settings=task.settings,
        progress=progress(task.listing.cell.key, len(task.listing.images)),
        workers=workers,
    )
    return ConversionResult(record=record, was_written=True, strays=task.listing.strays)


def benchmark_conversion(benchmark: Benchmark, locations: Locations, progress: Reporter) -> Conversion:
    """Return the conversion that *benchmark*'s file describes."""
    locations.require_own(locations.shards(benchmark.name, benchmark.cells[0]))
    source = open_images(benchmark, locations, progress)
    return Conversion(
        source=source,
        source_kind=benchmark.images.kind,
        generated=benchmark.is_generated,
        recipe=benchmark.images.recipe,
        benchmark_name=benchmark.name,
        class_map=load_class_map(benchmark, locations, source),
        settings=benchmark.shard_settings_of,
        folder=lambda cell: locations.shards(benchmark.name, cell),
        progress=progress,
    )
