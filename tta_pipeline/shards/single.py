"""One split, a folder of class folders, as the shards of one cell."""

from pathlib import Path

from tta_pipeline.benchmarks.shards import ShardSettings
from tta_pipeline.labels.class_map import ClassMap
from tta_pipeline.partitions import Cell
from tta_pipeline.processes import Workers
from tta_pipeline.progress import Reporter, quiet
from tta_pipeline.shards.conversion import Conversion, convert
from tta_pipeline.shards.manifest import ShardSet
from tta_pipeline.shards.read_back import publish_shard_set
from tta_pipeline.sources.folder_tree import FolderTree


def shard_split(
    source: Path,
    output: Path,
    *,
    cell: Cell,
    settings: ShardSettings,
    benchmark: str,
    classes: tuple[str, ...] | None = None,
    jobs: int = 1,
    progress: Reporter = quiet,
) -> ShardSet:
    """Write the images in *source* as the shards of *cell* into *output*, read every byte back, and return them.

    Args:
        source: `<source>/<class>/<name>.JPEG`, or another kind of image file.
        output: Folder of the shards, which is made; the same shards of the same images stay.
        cell: What the images are.
        settings: Limits, order, what is done to the images.
        benchmark: Its name in the manifest.
        classes: In the order of their labels; None: the sorted class folders.
        jobs: Processes that write.
        progress: Reports on the images as they pass.

    Raises:
        SourceError, ClassMapError: an image or a class folder is not what it should be.
        ShardError: the shards cannot be written.
    """
    tree = FolderTree(root=source, cells=(cell,), elsewhere=((cell, source),))
    conversion = Conversion(
        source=tree,
        source_kind="folder",
        generated=False,
        benchmark=benchmark,
        class_map=ClassMap(classes=classes or tree.class_names()),
        settings=settings,
        folder=lambda _: output,
        progress=progress,
    )
    with Workers(jobs) as workers, conversion.session([cell]) as session:
        record = convert(session.task(cell), progress, workers).record
        told = progress(f"{cell.key} manifest", record.num_samples)
        return publish_shard_set(output, conversion.class_map, told, workers).shard_set
