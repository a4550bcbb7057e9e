"""Sharding and verification from Python: one split of images becomes one cell, and is verified."""

import os
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Literal

from pydantic import ValidationError

from tta_pipeline.benchmarks.shard_settings import ShardSettings
from tta_pipeline.data.datasets.dataset_files import match_cell
from tta_pipeline.data.images.images_of_python import Content
from tta_pipeline.data.labels.label_files import read_classes
from tta_pipeline.domain.cells import CLEAN
from tta_pipeline.errors import ImagesError, ShardError
from tta_pipeline.loading.dataset import Shards, open_shards
from tta_pipeline.shards.verification import Verdict, find_shard_sets
from tta_pipeline.shards.verification import verify_shard_sets as verify_folders
from tta_pipeline.shards.write_cell import shard_images, shard_split
from tta_pipeline.util.local_paths import url_problem
from tta_pipeline.util.progress import Reporter, quiet_reporter


def shard(
    source: Path | str | Iterable[tuple[str, str, Content]],
    output: Path | str,
    *,
    num_shards: int | None = None,
    samples_per_shard: int | None = None,
    class_map: Path | str | tuple[str, ...] | None = None,
    order: Literal["permuted", "by_class", "dirichlet", "source"] = "permuted",
    seed: int = 0,
    jobs: int | None = None,
    progress: Reporter = quiet_reporter,
) -> Shards:
    """Turn images into tar shards with a manifest, and read every byte back.

    The folder names give the cell: `.../fog/5` is fog at severity 5, any other name is clean images. Shards already in
    *output* stay if they were made from the same images with the same settings.

    Args:
        source: Folder of class folders: `<source>/<class>/<name>.JPEG`, or another kind of image file. Or images that
            Python code makes: an iterable of class, file name, and the bytes or the path of the image file, or a PIL
            image, which becomes a PNG file.
        output: Folder of the shards; created if missing.
        num_shards: Exact number of shards; give this or *samples_per_shard*.
        samples_per_shard: Largest number of samples in a shard.
        class_map: The classes in the order of their labels, or a JSON list of them, or `meta.mat`; None: the classes
            of the images, sorted.
        order: Order of the samples in the shards; evaluation without a shuffle needs permuted.
        seed: Seed of that order.
        jobs: Number of processes that write; None: one for each core.
        progress: Reporter of the images as they are read and written.

    Raises:
        ImagesError, ClassMapError: an image or a class folder is invalid.
        ShardError: the settings contradict each other, or the shards cannot be written.
    """
    if problem := url_problem(str(output)):
        raise ShardError(problem)
    source, output = Path(source) if isinstance(source, str) else source, Path(output)
    if isinstance(source, Path) and source.is_file():
        raise ImagesError(
            f"{source} is a file; expected a folder of class folders: unpack it or, if it is an archive, read it as it "
            f"is with `tta-pipeline shards make {source} {output} --layout classes`, and open the set with open_shards"
        )
    try:
        settings = ShardSettings(num_shards=num_shards, samples_per_shard=samples_per_shard, order=order, seed=seed)
    except ValidationError as error:
        raise ShardError(error.errors()[0]["msg"].removeprefix("Value error, ")) from None
    write = partial(shard_split, source) if isinstance(source, Path) else partial(shard_images, source)
    write(
        output,
        cell=match_cell(output) or (match_cell(source) if isinstance(source, Path) else None) or CLEAN,
        settings=settings,
        benchmark_name=output.absolute().parts[-3] if match_cell(output) else output.absolute().name,
        classes=class_map if isinstance(class_map, tuple) or class_map is None else read_classes(Path(class_map)),
        jobs=jobs or len(os.sched_getaffinity(0)),
        progress=progress,
    )
    return open_shards(output)


def verify(*folders: Path | str, progress: Reporter = quiet_reporter) -> tuple[Verdict, ...]:
    """Hash every shard under *folders* again, and return a verdict on each set; an intact set has no `problems`.

    Raises:
        ManifestError: there is no shard set under one of the folders.
    """
    return tuple(verify_folders(find_shard_sets(map(Path, folders)), progress))
