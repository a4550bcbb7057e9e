"""The data to read: a shard set, split for several processes if requested, in the form that each loader needs."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tta_pipeline.benchmarks.shard_settings import ShardSettings
from tta_pipeline.data.image_bytes import read_image_header
from tta_pipeline.domain.cells import CLEAN
from tta_pipeline.errors import LoaderError
from tta_pipeline.extras.loader_bench.baseline import read_stored_files
from tta_pipeline.extras.loader_bench.loaders import Loader
from tta_pipeline.extras.loader_bench.synthetic_photographs import make_jpeg_tree
from tta_pipeline.shards.shard_set import ShardSet
from tta_pipeline.shards.splitting import split_shard_set
from tta_pipeline.shards.write_cell import shard_split
from tta_pipeline.util.files import scratch_folder
from tta_pipeline.util.progress import Reporter, quiet_reporter


@dataclass(frozen=True, kw_only=True)
class PreparedData:
    """A shard set that loaders can read, in one part per process."""

    shard_set: ShardSet
    image_size: int
    """Height and width of the images in pixels."""
    folder: Path
    """Temporary folder for the parts and for the forms that other loaders need."""
    part_folders: tuple[Path, ...]

    def prepared_folder(self, part: Path, loader: str) -> Path:
        """Return the folder with *part* in the form that *loader* reads."""
        return self.folder / loader / f"{self.part_folders.index(part):05d}"


@contextmanager
def prepared(folder: Path, loaders: Mapping[str, Loader], *, num_processes: int = 1) -> Iterator[PreparedData]:
    """Prepare the shard set in *folder* for *loaders*, and remove the temporary forms afterwards."""
    shard_set = ShardSet.open(folder)
    with scratch_folder("loader-bench-forms") as temporary:
        parts: tuple[Path, ...] = (folder,)
        if num_processes > 1:
            parts = tuple(
                step.done.shard_set.folder
                for step in split_shard_set(folder, temporary / "parts", num_processes, quiet_reporter)
            )
        data = PreparedData(
            shard_set=shard_set,
            image_size=require_square_images(shard_set),
            folder=temporary,
            part_folders=parts,
        )
        for name, loader in loaders.items():
            for part in parts:
                target = data.prepared_folder(part, name)
                target.mkdir(parents=True)
                loader.load().prepare(ShardSet.open(part), target)
        yield data


def generate_shards(
    folder: Path, *, num_images: int, image_size: int, settings: ShardSettings, progress: Reporter = quiet_reporter
) -> Path:
    """Write *num_images* natural-looking images into *folder*, make a shard set of them, and return its folder."""
    tree = make_jpeg_tree(folder / "images", num_images=num_images, size=image_size, progress=progress)
    shards = folder / "shards"
    shard_split(tree, shards, cell=CLEAN, settings=settings, benchmark_name=shards.name, progress=progress)
    return shards


def require_square_images(shard_set: ShardSet) -> int:
    """Return the height and width of the images of *shard_set* in pixels."""
    header = read_image_header(next(read_stored_files(shard_set)))
    if header.height != header.width:
        raise LoaderError(
            f"{shard_set.folder} has an image of {header.height}x{header.width} pixels; expected square images of one "
            "size: make such a shard set with `tta-pipeline shards make` and its options --resize and --center-crop"
        )
    return header.height
