"""The data to read: a shard set, split for several processes if requested, in the form that each loader needs."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from tta_pipeline.benchmarks.shards import ShardSettings
from tta_pipeline.errors import LoaderError
from tta_pipeline.images import ARRAYS, read_image_header
from tta_pipeline.loader_bench.loaders import LOADERS
from tta_pipeline.loader_bench.photographs import jpeg_tree
from tta_pipeline.partitions import CLEAN
from tta_pipeline.progress import Reporter, quiet
from tta_pipeline.shards.manifest import ShardSet
from tta_pipeline.shards.single import shard_split
from tta_pipeline.shards.splitting import split
from tta_pipeline.streaming.baselines.baseline import stored_files


@dataclass(frozen=True, kw_only=True)
class Data:
    """A shard set ready to be read by loaders, in one part per process."""

    shard_set: ShardSet
    image_size: int
    """Height and width of the images in pixels."""
    folder: Path
    """Temporary folder for parts and other forms."""
    part_folders: tuple[Path, ...]

    def prepared_folder(self, part: Path, loader: str) -> Path:
        """Return the folder of the form in which *loader* reads *part*."""
        return self.folder / loader / f"{self.part_folders.index(part):05d}"


@contextmanager
def prepared(folder: Path, loaders: Sequence[str], *, num_processes: int = 1) -> Iterator[Data]:
    """Yield the shard set in *folder*, ready to be read by *loaders*; other forms of it are removed afterwards.

    Raises:
        ManifestError: the shards are not what the manifest says.
        LoaderError: a loader cannot read such a shard set.
    """
    shard_set = ShardSet.open(folder)
    _require_readable(shard_set, loaders)
    with TemporaryDirectory(prefix="tta_pipeline-loaders-") as temporary:
        parts: tuple[Path, ...] = (folder,)
        if num_processes > 1:
            parts = tuple(
                step.done.shard_set.folder for step in split(folder, Path(temporary) / "parts", num_processes, quiet)
            )
        data = Data(
            shard_set=shard_set,
            image_size=_image_size(shard_set),
            folder=Path(temporary),
            part_folders=parts,
        )
        for part in parts:
            for name in loaders:
                target = data.prepared_folder(part, name)
                target.mkdir(parents=True)
                LOADERS[name].load().prepare(ShardSet.open(part), target)
        yield data


def generated(
    folder: Path, *, num_images: int, image_size: int, settings: ShardSettings, progress: Reporter = quiet
) -> Path:
    """Write *num_images* natural-looking images into *folder* and return the folder of the shard set made from them."""
    tree = jpeg_tree(folder / "images", num_images=num_images, size=image_size, progress=progress)
    shards = folder / "shards"
    shard_split(tree, shards, cell=CLEAN, settings=settings, benchmark_name=shards.name, progress=progress)
    return shards


def _require_readable(shard_set: ShardSet, loaders: Sequence[str]) -> None:
    # Raw samples are the source's files, which may be arrays too.
    has_arrays = read_image_header(next(stored_files(shard_set))).encoding in ARRAYS
    for name in loaders:
        expected = LOADERS[name].load().formats
        if has_arrays and "tensor" not in expected:
            raise LoaderError(
                f"{shard_set.folder} has arrays as samples; loader {name!r} reads {', '.join(expected)}: leave it out"
            )


def _image_size(shard_set: ShardSet) -> int:
    header = read_image_header(next(stored_files(shard_set)))
    if header.height != header.width:
        raise LoaderError(
            f"{shard_set.folder} has an image of {header.height}x{header.width} pixels; expected square images "
            "of one size: make such a set with `tta-pipeline transform`"
        )
    return header.height
