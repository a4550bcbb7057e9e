"""A source turned into shard sets, cell by cell: what the asset and the command line have in common."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from tta_pipeline.benchmarks.spec import Benchmark, ShardSettings
from tta_pipeline.labels.class_map import ClassMap
from tta_pipeline.locations import Locations
from tta_pipeline.partitions import Cell
from tta_pipeline.processes import Workers
from tta_pipeline.progress import Reporter
from tta_pipeline.shards.manifest import WriterRecord
from tta_pipeline.shards.writing import Target, unchanged, write_shards
from tta_pipeline.sources import benchmark_class_map, open_source
from tta_pipeline.sources.listing import Listing, Source


@dataclass(frozen=True, kw_only=True)
class Converted:
    """What became of one cell."""

    record: WriterRecord
    was_written: bool
    strays: tuple[Path, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Task:
    """The work on one cell."""

    existing: WriterRecord | None
    """The shards that stand there and need not be written."""
    listing: Listing | None
    """The images, if shards must be written."""
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
    progress: Reporter
    """Reports on the images of each cell."""

    @contextmanager
    def session(
        self, cells: Sequence[Cell], *, before_release: Callable[[], object] = lambda: None
    ) -> Iterator[Callable[[Cell], Task]]:
        """Yield what gives the work on each of *cells*, reading together what lies together, one group at a time.

        Args:
            cells: All cells that will be asked for.
            before_release: Called before the images of a group go, to wait for whoever still reads them.
        """
        prepared: tuple[Cell, ...] = ()
        with ExitStack() as stack:

            def task(cell: Cell) -> Task:
                nonlocal prepared
                version = self.source.version(cell)
                existing = self._unchanged(cell, version)
                if existing is None and cell not in prepared:
                    before_release()
                    stack.close()
                    others = [other for other in self.source.together(cell, cells) if other != cell]
                    todo = [other for other in others if not self._unchanged(other, self.source.version(other))]
                    prepared = (cell, *todo)
                    stack.enter_context(self.source.prepared(prepared))
                return self._task(cell, version, existing)

            yield task

    def _task(self, cell: Cell, version: str, existing: WriterRecord | None) -> Task:
        return Task(
            existing=existing,
            listing=self.source.listing(cell) if existing is None else None,
            target=self._target(cell),
            version=version,
            class_map=self.class_map,
            settings=self.settings,
        )

    def _unchanged(self, cell: Cell, version: str) -> WriterRecord | None:
        return unchanged(self._target(cell), cell, version, self.class_map, self.settings)

    def _target(self, cell: Cell) -> Target:
        return Target(
            folder=self.folder(cell),
            benchmark=self.benchmark,
            source_kind=self.source_kind,
            generated=self.generated,
        )


def convert(task: Task, progress: Reporter, workers: Workers | None = None) -> Converted:
    """Write the shards of a cell, unless they stand there.

    Raises:
        SourceError, ClassMapError, ShardError: see `write_shards`.
    """
    if task.existing is not None:
        return Converted(record=task.existing, was_written=False)
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
    return Converted(record=record, was_written=True, strays=task.listing.strays)


def benchmark_conversion(benchmark: Benchmark, locations: Locations, progress: Reporter) -> Conversion:
    """Return the conversion that *benchmark*'s file describes."""
    source = open_source(benchmark, locations, progress)
    assert benchmark.shards is not None
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
