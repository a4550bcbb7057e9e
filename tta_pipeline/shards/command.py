"""What the command line does with whole folders: shard, adopt and split them."""

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from multiprocessing import get_context
from pathlib import Path
from typing import Literal

from tta_pipeline.benchmarks.spec import ShardSettings
from tta_pipeline.errors import ManifestError, SourceError
from tta_pipeline.partitions import CLEAN, CORRUPTIONS, SEVERITIES, Cell, cells
from tta_pipeline.progress import Progress
from tta_pipeline.shards.conversion import Conversion, Task, convert
from tta_pipeline.shards.manifest import ShardSet
from tta_pipeline.shards.read_back import Published, adopt, publish_shard_set
from tta_pipeline.shards.writing import Target, equal_bounds, write_shards
from tta_pipeline.sources.class_map import ClassMap, pin_class_map
from tta_pipeline.sources.folder_tree import discover
from tta_pipeline.sources.labels import devkit_ids, read_classes, read_ground_truth
from tta_pipeline.sources.listing import Listing, Source, SourceImage

Tell = Callable[[str, int], Progress]


@dataclass(frozen=True, kw_only=True)
class ShardOrder:
    """What `tta-pipeline shard` was asked for."""

    sources: tuple[Path, ...]
    output: Path
    group_depth: int
    prefixes: tuple[str, ...]
    expected_md5: Mapping[str, str]
    class_map: Path | None
    settings: ShardSettings
    layout: Literal["corruptions", "classes", "nested", "flat"] = "corruptions"
    """How archives are laid out."""
    ground_truth: Path | None = None
    """Classes of the files of a flat archive."""
    jobs: int = 1
    """Processes, each of which writes a cell at a time."""


@dataclass(frozen=True, kw_only=True)
class _Opened:
    """A source with the cells it has."""

    kind: str
    source: Source
    cells: tuple[Cell, ...]


def shard_everything(order: ShardOrder, progress: Tell) -> Iterator[tuple[Cell, Published]]:
    """Write shards and manifest of every cell, and yield each when it is published.

    Raises:
        SourceError, ClassMapError, ShardError: see `write_shards`.
    """
    with _open(order) as opened:
        class_map = pin_class_map(order.output / "class_map.json", partial(_classes, order, opened))
        conversion = Conversion(
            source=opened.source,
            source_kind=opened.kind,
            generated=False,
            benchmark=order.output.absolute().name,
            class_map=class_map,
            settings=order.settings,
            folder=lambda cell: order.output if opened.cells == (CLEAN,) else order.output / cell.path,
            progress=progress,
        )
        if order.jobs > 1:
            yield from _convert_in_processes(conversion, opened.cells, order.jobs)
            return
        with conversion.session(opened.cells) as task:
            for cell in opened.cells:
                yield cell, _convert(conversion, task(cell))


def _convert(conversion: Conversion, task: Task) -> Published:
    record = convert(task, conversion.progress).record
    told = conversion.progress(f"{record.cell.key} manifest", record.num_samples)
    return publish_shard_set(task.target.folder, conversion.class_map, told)


def _convert_in_processes(
    conversion: Conversion, found: Sequence[Cell], num_processes: int
) -> Iterator[tuple[Cell, Published]]:
    """Convert cells in processes of their own, started afresh because forking a process with threads is not safe."""
    running: deque[tuple[Cell, Future[Published]]] = deque()
    with (
        ProcessPoolExecutor(num_processes, mp_context=get_context("spawn")) as pool,
        conversion.session(found, before_release=lambda: wait([future for _, future in running])) as task,
    ):
        try:
            for cell in found:
                running.append((cell, pool.submit(convert_task, task(cell))))
                if len(running) > num_processes:
                    done, future = running.popleft()
                    yield done, future.result()
            while running:
                done, future = running.popleft()
                yield done, future.result()
        finally:
            pool.shutdown(cancel_futures=True)


def convert_task(task: Task) -> Published:
    """Write shards and manifest of one cell, unless they stand there; what a worker process does."""
    quiet = Progress(lambda _: None, what="", num_images=0)
    convert(task, lambda *_: quiet)
    return publish_shard_set(task.target.folder, task.class_map, quiet)


def adopt_everything(root: Path, class_map: ClassMap | None, progress: Tell) -> Iterator[tuple[Path, Published]]:
    """Adopt every folder with shards at or under *root*.

    Raises:
        ManifestError: there is none, or a shard is damaged.
    """
    folders = sorted({path.parent for path in root.rglob("*.tar")})
    if not folders:
        raise ManifestError(f"no *.tar at or under {root}; expected shards")
    for folder in folders:
        name, severity = folder.absolute().parts[-2:]
        is_cell = severity.isdecimal() and int(severity) <= max(SEVERITIES)
        cell = Cell(corruption=name, severity=int(severity)) if is_cell else Cell(corruption=severity, severity=0)
        told = progress(str(folder), 0)
        yield folder, adopt(folder, cell, told, benchmark=root.absolute().name, class_map=class_map)


def split(folder: Path, output: Path, num_instances: int, progress: Tell) -> Iterator[tuple[Path, Published]]:
    """Write the samples of a shard set, in their order and byte for byte, as *num_instances* equal shard sets.

    Raises:
        ManifestError: the shard set is not what its manifest says.
        ShardError: there are more instances than samples, or the shards cannot be written.
    """
    shard_set = ShardSet.open(folder)
    shard_set.require_intact()
    manifest = shard_set.manifest
    class_map = ClassMap(classes=manifest.classes)
    images = _stored_images(shard_set)
    if num_instances > len(images):
        raise SourceError(
            f"found {len(images)} samples in {folder}; expected at least {num_instances}, one an instance"
        )
    for number, (start, end) in enumerate(pairwise(equal_bounds(len(images), num_instances))):
        part = images[start:end]
        target = Target(
            folder=output / f"{number:05d}-of-{num_instances:05d}",
            benchmark=manifest.benchmark,
            source_kind="shards",
            generated=manifest.source.generated,
        )
        write_shards(
            Listing(cell=manifest.cell, root=folder, images=part),
            target,
            version=f"{manifest.sha256}:{number}/{num_instances}",
            class_map=class_map,
            settings=ShardSettings(num_shards=max(1, len(manifest.shards) // num_instances), order="source"),
            progress=progress(target.folder.name, len(part)),
        )
        yield target.folder, publish_shard_set(target.folder, class_map, progress(target.folder.name, len(part)))


def _stored_images(shard_set: ShardSet) -> tuple[SourceImage, ...]:
    """Return the samples of *shard_set* in stored order, as slices of its shards."""
    shards = [str(shard_set.folder / shard.name) for shard in shard_set.manifest.shards]
    return tuple(
        SourceImage(
            class_name=shard_set.manifest.classes[row["label"]],
            file_name=row["source_name"].rpartition("/")[2],
            path=shards[row["shard"]],
            size_bytes=row["size_bytes"],
            modified_ns=0,
            offset=row["offset"],
        )
        for row in shard_set.index.table.to_pylist()
    )


@contextmanager
def _open(order: ShardOrder) -> Iterator[_Opened]:
    folders = [source for source in order.sources if source.is_dir()]
    if len(folders) == len(order.sources) == 1:
        (root,) = folders
        yield _open_npy(root, order) if (root / "labels.npy").exists() else _open_tree(root, order)
    elif folders:
        raise SourceError(f"found the folder {folders[0]} beside other sources; expected one folder, or archives only")
    else:
        with _open_archives(order) as opened:
            yield opened


def _open_tree(root: Path, order: ShardOrder) -> _Opened:
    tree = discover(root, group_depth=order.group_depth, prefixes=order.prefixes)
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
def _open_archives(order: ShardOrder) -> Iterator[_Opened]:
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
    )
    # The pass over a single archive finds its cells; of several it must be known before which has which.
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
