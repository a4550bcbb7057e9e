"""Write the shards and the manifest of one cell, from a folder of class folders or from images in memory."""

import hashlib
from collections.abc import Iterable
from pathlib import Path

from tta_pipeline.benchmarks.shard_settings import ShardSettings
from tta_pipeline.data.images.folder_tree import FolderTree
from tta_pipeline.data.images.images_of_python import Content, check_yielded
from tta_pipeline.data.images.listing import Listing
from tta_pipeline.data.images.spill import SpillFile, spill_folder
from tta_pipeline.data.labels.class_map import ClassMap, label_order
from tta_pipeline.domain.cells import Cell
from tta_pipeline.shards.build_manifest import publish_shard_set
from tta_pipeline.shards.conversion import CellTask, Conversion, convert
from tta_pipeline.shards.expected_shard_set import ExpectedShardSet
from tta_pipeline.shards.set_contents import PublishedShardSet
from tta_pipeline.shards.shard_set import ShardSet
from tta_pipeline.shards.shard_set_writing import Target, find_unchanged
from tta_pipeline.util.files import node_local_folder
from tta_pipeline.util.processes import Workers
from tta_pipeline.util.progress import Reporter, quiet_reporter


def shard_split(
    source: Path,
    output: Path,
    *,
    cell: Cell,
    settings: ShardSettings,
    benchmark_name: str,
    classes: tuple[str, ...] | None = None,
    jobs: int = 1,
    progress: Reporter = quiet_reporter,
) -> ShardSet:
    """Write the images in *source* as the shards of *cell* into *output*, read every byte back, and return the set.

    Args:
        source: `<source>/<class>/<name>.JPEG`, or another kind of image file.
        output: Folder of the shards, created if missing; identical shards of the same images are kept.
        cell: Cell of the images.
        settings: Limits, order and processing of the images.
        benchmark_name: Name of the benchmark in the manifest.
        classes: Class names in the order of their labels; None: the sorted class folders.
        jobs: Number of processes that write.
        progress: Reports progress on the images.

    Raises:
        ImagesError, ClassMapError: an image or a class folder is not what it should be.
        ShardError: the shards cannot be written.
    """
    tree = FolderTree(root=source, cells=(cell,), elsewhere=((cell, source),), named=lambda: classes or ())
    conversion = Conversion(
        source=tree,
        source_kind="folder",
        generated=False,
        benchmark_name=benchmark_name,
        class_map=ClassMap(classes=classes or tree.class_names()),
        settings=lambda _: settings,
        folder=lambda _: output,
        progress=progress,
    )
    with Workers(jobs) as workers, conversion.session([cell]) as session:
        return write_cell(session.task(cell), progress, workers).shard_set


def shard_images(
    images: Iterable[tuple[str, str, Content]],
    output: Path,
    *,
    cell: Cell,
    settings: ShardSettings,
    benchmark_name: str,
    classes: tuple[str, ...] | None = None,
    jobs: int = 1,
    progress: Reporter = quiet_reporter,
) -> ShardSet:
    """Write *images* as the shards of *cell* into *output*, read every byte back, and return the set.

    The images are kept in a file in `$TMPDIR` until all have arrived, since shards store them in another order.

    Args:
        images: Class, file name and content of each image; a PIL image becomes a PNG file.
        output: Folder of the shards; see `shard_split`.
        cell: Cell of the images.
        settings: Limits, order and processing of the images.
        benchmark_name: Name of the benchmark in the manifest.
        classes: Class names in the order of their labels; None: the sorted classes of the images.
        jobs: Number of processes that write.
        progress: Reports progress on the images.

    Raises:
        ImagesError, ClassMapError: an image is damaged, two have the same name, or a class is not one of *classes*.
        ShardError: the shards cannot be written.
    """
    with spill_folder(node_local_folder() / "images") as spill, Workers(jobs) as workers:
        file = spill.file(cell)
        version = _spill(images, file)
        found = file.flush_images()
        class_map = ClassMap(classes=classes or label_order(found.class_names))
        target = Target(folder=output, benchmark_name=benchmark_name, source_kind="python")
        task = CellTask(
            existing=find_unchanged(target, cell, version, class_map, settings),
            listing=Listing(cell=cell, root=output, images=found),
            target=target,
            version=version,
            class_map=class_map,
            settings=settings,
        )
        return write_cell(task, progress, workers).shard_set


def _spill(images: Iterable[tuple[str, str, Content]], file: SpillFile) -> str:
    """Append *images* to *file*, and return the hash of their names and contents."""
    digest = hashlib.sha256()
    for image in check_yielded(images):
        data = image.read()
        digest.update(f"{image.class_name}/{image.file_name}\0{len(data)}\0".encode())
        digest.update(data)
        file.append(image.class_name, image.file_name, data)
    return digest.hexdigest()


def write_cell(task: CellTask, progress: Reporter, workers: Workers | None = None) -> PublishedShardSet:
    """Write shards and manifest of one cell, unless they exist."""
    record = convert(task, progress, workers).record
    manifest_progress = progress(f"{record.cell.key} manifest", record.num_samples)
    belonging = ExpectedShardSet(cell=record.cell, class_map_sha256=task.class_map.sha256)
    return publish_shard_set(task.target.folder, task.class_map, manifest_progress, workers, belonging=belonging)
