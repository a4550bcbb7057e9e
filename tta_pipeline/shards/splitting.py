"""Splitting a shard set into several equal ones, one per instance."""

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

from tta_pipeline.benchmarks.shard_settings import ShardSettings
from tta_pipeline.data.images.listing import Listing
from tta_pipeline.data.labels.class_map import ClassMap
from tta_pipeline.errors import ImagesError
from tta_pipeline.shards.build_manifest import publish_shard_set
from tta_pipeline.shards.set_contents import PublishedShardSet
from tta_pipeline.shards.shard_set import ShardSet
from tta_pipeline.shards.shard_set_writing import Target, equal_bounds, write_shards
from tta_pipeline.shards.stored_images import stored_images
from tta_pipeline.util.plurals import count_of
from tta_pipeline.util.progress import Reporter, Step


def split_shard_set(
    folder: Path, output: Path, num_instances: int, progress: Reporter
) -> Iterator[Step[PublishedShardSet]]:
    """Write the samples of a shard set, in order and byte for byte, as *num_instances* equal shard sets."""
    shard_set = ShardSet.open(folder)
    manifest = shard_set.manifest
    class_map = ClassMap(classes=manifest.classes)
    images = stored_images(shard_set)
    if num_instances > len(images):
        raise ImagesError(
            f"{folder} has {count_of(len(images), 'sample')}; expected at least {num_instances}, one for each part: "
            "lower --parts"
        )
    for number, (start, end) in enumerate(pairwise(equal_bounds(len(images), num_instances))):
        part = images[start:end]
        target = Target(
            folder=output / f"{number:05d}-of-{num_instances:05d}",
            benchmark_name=manifest.benchmark,
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
        published = publish_shard_set(target.folder, class_map, progress(target.folder.name, len(part)))
        yield Step(number + 1, num_instances, published)
