"""Writing the shards and the manifest of one cell, or of one split: a folder of class folders."""

from pathlib import Path

from tta_pipeline.benchmarks.shard_settings import ShardSettings
from tta_pipeline.data.labels.class_map import ClassMap
from tta_pipeline.data.sources.folder_tree import FolderTree
from tta_pipeline.shards.build_manifest import publish_shard_set
from tta_pipeline.shards.conversion import CellTask, Conversion, convert
from tta_pipeline.shards.expected_shard_set import ExpectedShardSet
from tta_pipeline.shards.set_contents import PublishedShardSet
from tta_pipeline.shards.shard_set import ShardSet
from tta_pipeline.util.partitions import Cell
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
        SourceError, ClassMapError: an image or a class folder is not what it should be.
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


def write_cell(task: CellTask, progress: Reporter, workers: Workers | None = None) -> PublishedShardSet:
    """Write shards and manifest of one cell, unless they exist.

    Raises:
        SourceError, ClassMapError, ShardError: see `write_shards`.
        ManifestError: the shards on disk differ from the writer's record, or are of another cell.
    """
    record = convert(task, progress, workers).record
    manifest_progress = progress(f"{record.cell.key} manifest", record.num_samples)
    belonging = ExpectedShardSet(cell=record.cell, class_map_sha256=task.class_map.sha256)
    return publish_shard_set(task.target.folder, task.class_map, manifest_progress, workers, belonging=belonging)
