"""The data to read: a shard set, split for several processes if requested, in the form that each loader needs."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tta_pipeline.benchmarks.shard_settings import ShardSettings
from tta_pipeline.data.images import ARRAYS, read_image_header
from tta_pipeline.errors import LoaderError, PipelineError
from tta_pipeline.extras.loader_bench.loaders import LOADERS, describe_error
from tta_pipeline.extras.loader_bench.synthetic_photographs import make_jpeg_tree
from tta_pipeline.loading.baselines.baseline import read_stored_files
from tta_pipeline.shards.shard_set import ShardSet
from tta_pipeline.shards.splitting import split_shard_set
from tta_pipeline.shards.write_cell import shard_split
from tta_pipeline.util.files import scratch_folder
from tta_pipeline.util.partitions import CLEAN
from tta_pipeline.util.progress import Reporter, quiet_reporter
from tta_pipeline.util.short_lists import abbreviate_list


@dataclass(frozen=True, kw_only=True)
class PreparedData:
    """A shard set that loaders can read, in one part per process."""

    shard_set: ShardSet
    image_size: int
    """Height and width of the images in pixels."""
    folder: Path
    """Temporary folder for the parts and for the forms that other loaders need."""
    part_folders: tuple[Path, ...]
    not_measured: Mapping[str, str]
    """Reason why a loader cannot read the set here, by the loader's name: partly installed, or not for this format."""

    def prepared_folder(self, part: Path, loader: str) -> Path:
        """Return the folder with *part* in the form that *loader* reads."""
        return self.folder / loader / f"{self.part_folders.index(part):05d}"


@contextmanager
def prepared(folder: Path, loaders: Sequence[str], *, num_processes: int = 1) -> Iterator[PreparedData]:
    """Prepare the shard set in *folder* for *loaders*, and remove the temporary forms afterwards.

    Raises:
        ManifestError: the shards disagree with the manifest.
        LoaderError: none of *loaders* can read this shard set here.
    """
    shard_set = ShardSet.open(folder)
    # Raw samples are the source's files, which may be arrays too.
    has_arrays = read_image_header(next(read_stored_files(shard_set))).encoding in ARRAYS
    with scratch_folder("loader-bench-forms") as temporary:
        parts: tuple[Path, ...] = (folder,)
        if num_processes > 1:
            parts = tuple(
                step.done.shard_set.folder
                for step in split_shard_set(folder, temporary / "parts", num_processes, quiet_reporter)
            )
        not_measured = dict[str, str]()
        data = PreparedData(
            shard_set=shard_set,
            image_size=_require_square_images(shard_set),
            folder=temporary,
            part_folders=parts,
            not_measured=not_measured,
        )
        for name in loaders:
            if problem := _prepare_for(data, name, has_arrays=has_arrays):
                not_measured[name] = problem
        if not set(loaders) - not_measured.keys():
            raise LoaderError(abbreviate_list(list(not_measured.values()), "; "))
        yield data


def _prepare_for(data: PreparedData, name: str, *, has_arrays: bool) -> str:
    """Let the loader *name* prepare its form of the data; return the problem, or an empty string if there is none."""
    try:
        loader = LOADERS[name].load()
        if has_arrays and "tensor" not in loader.formats:
            return (
                f"{data.shard_set.folder} has arrays as samples; loader {name!r} reads {', '.join(loader.formats)}: "
                "leave it out"
            )
        for part in data.part_folders:
            target = data.prepared_folder(part, name)
            target.mkdir(parents=True)
            loader.prepare(ShardSet.open(part), target)
    except PipelineError:
        raise
    except Exception as error:  # noqa: BLE001 - another library can raise anything, above all if partly installed
        return (
            f"loader {name!r} raised {describe_error(error)}; expected a complete installation: {LOADERS[name].needs}"
        )
    return ""


def generate_shards(
    folder: Path, *, num_images: int, image_size: int, settings: ShardSettings, progress: Reporter = quiet_reporter
) -> Path:
    """Write *num_images* natural-looking images into *folder*, make a shard set of them, and return its folder."""
    tree = make_jpeg_tree(folder / "images", num_images=num_images, size=image_size, progress=progress)
    shards = folder / "shards"
    shard_split(tree, shards, cell=CLEAN, settings=settings, benchmark_name=shards.name, progress=progress)
    return shards


def _require_square_images(shard_set: ShardSet) -> int:
    header = read_image_header(next(read_stored_files(shard_set)))
    if header.height != header.width:
        raise LoaderError(
            f"{shard_set.folder} has an image of {header.height}x{header.width} pixels; expected square images "
            "of one size: make such a set with `tta-pipeline shards make`, --resize and --center-crop"
        )
    return header.height
