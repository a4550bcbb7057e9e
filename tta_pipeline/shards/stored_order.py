"""The order of the stored samples, which depends only on their names and the settings."""

from collections.abc import Sequence

import numpy as np

from tta_pipeline.benchmarks.shard_settings import ShardSettings
from tta_pipeline.data.sources.listing import SourceImage
from tta_pipeline.shards.ordering import Indices, by_class, dirichlet, domain_seed, permuted
from tta_pipeline.util.partitions import Cell


def order_images(images: Sequence[SourceImage], settings: ShardSettings, cell: Cell) -> list[SourceImage]:
    """Return *images* of *cell*, given sorted by name, in the order that *settings* ask for."""
    if settings.order == "source":
        return list(images)
    return [images[position] for position in _positions(images, settings, cell).tolist()]


def _positions(images: Sequence[SourceImage], settings: ShardSettings, cell: Cell) -> Indices:
    names = [image.name for image in images]
    if settings.order == "permuted":
        return permuted(names, seed=settings.seed)
    numbers = {name: number for number, name in enumerate(sorted({image.class_name for image in images}))}
    classes = np.array([numbers[image.class_name] for image in images], np.int64)
    if settings.order == "by_class":
        return by_class(names, classes, seed=settings.seed)
    return dirichlet(names, classes, seed=domain_seed(settings.seed, cell.key), delta=settings.delta)
