"""A source turned into shard sets, cell by cell: what the asset and the command line have in common."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tta_pipeline.benchmarks.spec import Benchmark, ShardSettings
from tta_pipeline.locations import Locations
from tta_pipeline.partitions import Cell
from tta_pipeline.progress import Progress
from tta_pipeline.shards.manifest import WriterRecord
from tta_pipeline.shards.writing import Target, unchanged, write_shards
from tta_pipeline.sources import benchmark_class_map, open_source
from tta_pipeline.sources.class_map import ClassMap
from tta_pipeline.sources.listing import Listing, Source


@dataclass(frozen=True, kw_only=True)
class Converted:
    """What became of one cell."""

    record: WriterRecord
    was_written: bool
    strays: tuple[Path, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Task:
    """The work on one cell, to be done in any process."""

    listing: Listing | None
    """None if the shards stand there."""
    target: Target
    version: str
    class_map: ClassMap
    settings: ShardSettings


@dataclass(frozen=True, kw_only=True)
class Conversion:
    """A source, where its shards go and how they are made."""

    source: Source
    source_kind: str
    generated: bool
    benchmark: str
    class_map: ClassMap
    settings: ShardSettings
    folder: Callable[[Cell], Path]
    """The folder of a cell's shards."""
    progress: Callable[[str, int], Progress]
    """What to tell, given the name of a cell and its number of images."""

    @contextmanager
    def prepared(self, cells: Sequence[Cell]) -> Iterator[None]:
        """Let the source read together what lies together, for those *cells* that must be written."""
        with self.source.prepared([cell for cell in cells if self._unchanged(cell) is None]):
            yield

    def convert(self, cell: Cell) -> Converted:
        """Write the shards of *cell*, unless they stand there.

        Raises:
            SourceError, ClassMapError, ShardError: see `write_shards`.
        """
        existing = self._unchanged(cell)
        if existing is not None:
            return Converted(record=existing, was_written=False)
        listing = self.source.listing(cell)
        record = write_shards(
            listing,
            self._target(cell),
            version=self.source.version(cell),
            class_map=self.class_map,
            settings=self.settings,
            progress=self.progress(cell.key, len(listing.images)),
        )
        return Converted(record=record, was_written=True, strays=listing.strays)

    def task(self, cell: Cell) -> Task:
        """Return the work on *cell*."""
        return Task(
            listing=self.source.listing(cell) if self._unchanged(cell) is None else None,
            target=self._target(cell),
            version=self.source.version(cell),
            class_map=self.class_map,
            settings=self.settings,
        )

    def _unchanged(self, cell: Cell) -> WriterRecord | None:
        return unchanged(self._target(cell), self.source.version(cell), self.class_map, self.settings)

    def _target(self, cell: Cell) -> Target:
        return Target(
            folder=self.folder(cell),
            benchmark=self.benchmark,
            source_kind=self.source_kind,
            generated=self.generated,
        )


def benchmark_conversion(
    benchmark: Benchmark, locations: Locations, progress: Callable[[str, int], Progress]
) -> Conversion:
    """Return the conversion that *benchmark*'s file describes."""
    source = open_source(benchmark, locations)
    return Conversion(
        source=source,
        source_kind=benchmark.source.kind,
        generated=benchmark.is_generated,
        benchmark=benchmark.name,
        class_map=benchmark_class_map(benchmark, locations, source),
        settings=benchmark.shards,
        folder=lambda cell: locations.shards(benchmark.name, cell),
        progress=progress,
    )
