"""What the command line does with whole folders: shard them."""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Literal

from tta_pipeline.benchmarks.shards import ShardSettings
from tta_pipeline.errors import SourceError
from tta_pipeline.labels.class_map import pin_class_map
from tta_pipeline.labels.label_files import devkit_ids, read_classes, read_ground_truth
from tta_pipeline.partitions import CLEAN, CORRUPTIONS, SEVERITIES, Cell, cells
from tta_pipeline.processes import Workers
from tta_pipeline.progress import Reporter, Step, quiet
from tta_pipeline.shards.conversion import Conversion
from tta_pipeline.shards.read_back import Published
from tta_pipeline.shards.single import write_cell
from tta_pipeline.sources.folder_tree import discover
from tta_pipeline.sources.listing import Source


@dataclass(frozen=True, kw_only=True)
class ShardOrder:
    """What the user asks of `tta-pipeline shard`."""

    sources: tuple[Path, ...]
    output: Path
    group_depth: int
    prefixes: tuple[str, ...]
    expected_md5: Mapping[str, str]
    class_map: Path | None
    settings: ShardSettings
    layout: Literal["corruptions", "classes", "nested", "flat"] = "corruptions"
    """Layout of the archives."""
    ground_truth: Path | None = None
    """File with the classes of the files of a flat archive."""
    class_pattern: str | None = None
    """Regular expression on `<folder>/<file>` whose first group is the class."""
    jobs: int = 1
    """Number of processes, each of which writes and reads a shard at a time."""


@dataclass(frozen=True, kw_only=True)
class _Opened:
    """An opened source with the cells it has."""

    kind: str
    source: Source
    cells: tuple[Cell, ...]


def shard_everything(order: ShardOrder, progress: Reporter) -> Iterator[Step[Published]]:
    """Write shards and manifest of every cell, and yield each when it is published.

    Raises:
        SourceError, ClassMapError, ShardError: see `write_shards`.
    """
    with Workers(order.jobs) as workers, _open(order, workers, progress) as opened:
        class_map = pin_class_map(order.output / "class_map.json", partial(_classes, order, opened))
        conversion = Conversion(
            source=opened.source,
            source_kind=opened.kind,
            generated=False,
            benchmark_name=order.output.absolute().name,
            class_map=class_map,
            settings=order.settings,
            folder=lambda cell: order.output if opened.cells == (CLEAN,) else order.output / cell.path,
            progress=progress,
        )
        every = _convert_all(conversion, opened.cells, workers)
        for number, published in enumerate(every, start=1):
            yield Step(number, len(opened.cells), published)


def _convert_all(conversion: Conversion, found: Sequence[Cell], workers: Workers) -> Iterator[Published]:
    """Convert cell after cell; each process takes a cell if there are enough cells, and a shard otherwise."""
    if workers.num_processes == 1 or len(found) < workers.num_processes:
        with conversion.session(found) as session:
            for cell in found:
                yield write_cell(session.task(cell), conversion.progress, workers)
        return
    running: deque[Future[Published]] = deque()
    with conversion.session(found) as session:
        for cell in found:
            if not session.has_images_of(cell):
                wait(running)  # they read the images of the previous group, which are removed next
            running.append(workers.submit(write_cell, session.task(cell), quiet))
            if len(running) > workers.num_processes:
                yield running.popleft().result()
        while running:
            yield running.popleft().result()


@contextmanager
def _open(order: ShardOrder, workers: Workers, progress: Reporter) -> Iterator[_Opened]:
    folders = [source for source in order.sources if source.is_dir()]
    if len(folders) == len(order.sources) == 1:
        (root,) = folders
        yield _open_npy(root, order) if (root / "labels.npy").exists() else _open_tree(root, order)
    elif folders:
        raise SourceError(f"found the folder {folders[0]} beside other sources; expected one folder, or archives only")
    else:
        if workers.are_worth(sum(archive.stat().st_size for archive in order.sources if archive.exists())):
            workers.start(write_cell)  # what they need is imported while the archives are read
        with _open_archives(order, progress) as opened:
            yield opened


def _open_tree(root: Path, order: ShardOrder) -> _Opened:
    tree = replace(
        discover(root, group_depth=order.group_depth, prefixes=order.prefixes), class_pattern=order.class_pattern
    )
    return _Opened(kind="folder", source=tree, cells=tree.cells)


def _open_npy(root: Path, order: ShardOrder) -> _Opened:
    from tta_pipeline.sources.npy import NpySource

    there = tuple(corruption for corruption in CORRUPTIONS if (root / f"{corruption}.npy").exists())
    found = _matching(cells(there, SEVERITIES), order.prefixes)
    source = NpySource(
        root=root,
        cells=found,
        class_names_by_label=read_classes(order.class_map) if order.class_map else (),
        spill_root=order.output,
    )
    return _Opened(kind="npy", source=source, cells=found)


@contextmanager
def _open_archives(order: ShardOrder, progress: Reporter) -> Iterator[_Opened]:
    from tta_pipeline.sources.archive import ArchiveSource

    missing = [str(path) for path in order.sources if not path.is_file()]
    if missing:
        raise SourceError(f"{', '.join(missing)} does not exist; expected a folder or tar archives")
    layout = "classes" if order.group_depth == 0 and order.layout == "corruptions" else order.layout
    is_one_set = layout != "corruptions"
    wanted = (CLEAN,) if is_one_set else _matching(cells(CORRUPTIONS, SEVERITIES), order.prefixes)
    source = ArchiveSource(
        archives=order.sources,
        cells=wanted,
        spill_root=order.output,
        expected_md5=order.expected_md5,
        layout=layout,
        classes_by_file=_ground_truth(order),
        class_pattern=order.class_pattern,
        progress=progress,
    )
    # The pass over a single archive finds its cells; of several archives it must be known before which cell is where.
    with source.prepared(wanted if len(order.sources) == 1 else ()):
        yield _Opened(kind="archive", source=source, cells=source.cells_found())


def _ground_truth(order: ShardOrder) -> Mapping[str, str]:
    if order.ground_truth is None:
        return {}
    has_devkit = order.class_map is not None and order.class_map.suffix == ".mat"
    return read_ground_truth(
        order.ground_truth, devkit_ids(order.class_map) if has_devkit and order.class_map else None
    )


def _matching(found: Sequence[Cell], prefixes: Sequence[str]) -> tuple[Cell, ...]:
    paths = [prefix.strip("/") for prefix in prefixes]
    return tuple(cell for cell in found if not paths or any(f"{cell.path}/".startswith(f"{path}/") for path in paths))


def _classes(order: ShardOrder, opened: _Opened) -> tuple[str, ...]:
    return read_classes(order.class_map) if order.class_map else opened.source.class_names()
