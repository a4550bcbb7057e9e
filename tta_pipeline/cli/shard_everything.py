"""Conversion of all cells of a source into shards: the work of the verb `shards make`."""

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, wait
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tta_pipeline.benchmarks.shard_settings import LARGEST_IMAGE, ShardSettings
from tta_pipeline.data.datasets.dataset import Dataset
from tta_pipeline.data.datasets.dataset_files import match_cell
from tta_pipeline.data.images.images_section import ConvertedSection, ImagesContext
from tta_pipeline.data.images.listing import Source
from tta_pipeline.data.labels.class_map import ClassMap, class_map_of_found, pin_class_map, read_pinned_class_map
from tta_pipeline.data.labels.label_files import read_classes
from tta_pipeline.data.labels.shipped_lists import shipped_classes
from tta_pipeline.domain.cells import CLEAN, Cell, grid_of_cells
from tta_pipeline.domain.locations import CLASS_MAP_FILE
from tta_pipeline.errors import ImagesError, PipelineError
from tta_pipeline.shards.conversion import Conversion
from tta_pipeline.shards.manifest import WRITER_FILE
from tta_pipeline.shards.set_contents import PublishedShardSet
from tta_pipeline.shards.write_cell import write_cell
from tta_pipeline.util.files import temporary_folder
from tta_pipeline.util.processes import Workers
from tta_pipeline.util.progress import Reporter, Step, quiet_reporter


@dataclass(frozen=True, kw_only=True)
class ShardRequest:
    """Arguments of `tta-pipeline shards make`."""

    images: ConvertedSection
    output: Path
    settings: ShardSettings
    dataset: Dataset
    prefixes: tuple[str, ...] = ()
    class_map: Path | None = None
    """File with the classes, or the name of a list that comes with the project; None: the dataset's list, or
    the class folders."""
    jobs: int = 1
    """Number of processes; each writes and reads one shard at a time."""

    def named_classes(self) -> tuple[str, ...]:
        """Return the classes of the class map in label order; empty if there is no class map."""
        if self.class_map is None:
            return shipped_classes(self.dataset.classes) if self.dataset.classes else ()
        return read_classes(self.class_map)


def shard_everything(order: ShardRequest, progress: Reporter) -> Iterator[Step[PublishedShardSet]]:
    """Write the shards and the manifest of every cell, and yield each shard set when it is published."""
    with _spill_root(order) as spill_root, Workers(order.jobs) as workers:
        if workers.are_worth_starting(order.images.one_pass_bytes):
            workers.start(write_cell)  # the workers import their modules while the archives are read
        context = _images_context(order, spill_root, progress)
        with order.images.opened_whole(context, order.prefixes) as (source, found), _keeping_no_unused_map(order):
            if not found:
                raise ImagesError(
                    f"There is no cell of {order.dataset.name} in {_where(order.images)}; expected folders "
                    "<corruption>/<severity> with its names: choose another dataset with --dataset, or use "
                    "--class-dir-depth 0 for a single set of images"
                )
            every = _convert_all(_make_conversion(order, source, found, progress), found, workers)
            for number, published in enumerate(every, start=1):
                yield Step(number, len(found), published)


@contextmanager
def _keeping_no_unused_map(order: ShardRequest) -> Iterator[None]:
    """Remove the class map that was pinned in the block if an error occurs before any shards: no set uses its labels.

    Otherwise the next run, with another class map, would be refused because of it.
    """
    path = order.output / CLASS_MAP_FILE
    was_pinned = path.exists()
    try:
        yield
    except PipelineError:
        if not was_pinned and not any(order.output.rglob(WRITER_FILE)):
            path.unlink(missing_ok=True)
        raise


def _spill_root(order: ShardRequest) -> AbstractContextManager[Path]:
    """Return the folder for temporary files.

    If the output is one shard set, the folder is next to it, since the output is replaced as a whole. If the output
    has several sets, the folder is the output itself, which keeps the index of the archives for the next run.
    """
    return temporary_folder(order.output) if order.images.is_one_set else nullcontext(order.output)


def _images_context(order: ShardRequest, spill_root: Path, progress: Reporter) -> ImagesContext:
    is_one_set = order.images.is_one_set
    cell = match_cell(order.output, order.dataset) or CLEAN
    return ImagesContext(
        cells=(cell,) if is_one_set else _cells(order.dataset),
        dataset=order.dataset,
        spill_root=spill_root,
        generated_root=spill_root,
        image_size=LARGEST_IMAGE,
        classes=order.named_classes,
        progress=progress,
    )


def _make_conversion(order: ShardRequest, source: Source, found: Sequence[Cell], progress: Reporter) -> Conversion:
    is_one_set = order.images.is_one_set or tuple(found) == (CLEAN,)
    return Conversion(
        source=source,
        source_kind=order.images.kind,
        generated=False,
        recipe=order.images.recipe,
        benchmark_name=order.output.absolute().name,
        class_map=_class_map(order, source, is_one_set=is_one_set),
        settings=lambda _: order.settings,
        folder=lambda cell: order.output if is_one_set else order.output / cell.path,
        progress=progress,
    )


def _class_map(order: ShardRequest, source: Source, *, is_one_set: bool) -> ClassMap:
    """Return the class map that is pinned for all cells; a single set is described by its manifest and pins none."""
    path, find_classes = order.output / CLASS_MAP_FILE, partial(_classes, order, source)
    if is_one_set:
        class_map = read_pinned_class_map(path) or class_map_of_found(find_classes(), where=path)
    else:
        class_map = pin_class_map(path, find_classes)
    if named := order.named_classes():
        class_map.require_same(named, where=order.class_map or f"dataset {order.dataset.name}", pinned_at=path)
    return class_map


def _classes(order: ShardRequest, source: Source) -> tuple[str, ...]:
    return order.named_classes() or source.class_names()


def _cells(dataset: Dataset) -> tuple[Cell, ...]:
    return grid_of_cells(dataset.names, dataset.cell_severities)


def _where(source: ConvertedSection) -> str:
    return ", ".join(str(value) for name, value in source if name in ("root", "archives", "function"))


def _convert_all(conversion: Conversion, found: Sequence[Cell], workers: Workers) -> Iterator[PublishedShardSet]:
    """Convert every cell; if there are enough cells, each process converts a whole cell, otherwise single shards."""
    if workers.num_processes == 1 or len(found) < workers.num_processes:
        with conversion.session(found) as session:
            for cell in found:
                yield write_cell(session.task(cell), conversion.progress, workers)
        return
    running: deque[Future[PublishedShardSet]] = deque()
    with conversion.session(found) as session:
        for cell in found:
            if not session.has_images_of(cell):
                wait(running)  # these jobs read the images of the previous group, which are removed next
            running.append(workers.submit(write_cell, session.task(cell), quiet_reporter))
            if len(running) > workers.num_processes:
                yield running.popleft().result()
        while running:
            yield running.popleft().result()
