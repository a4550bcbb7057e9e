"""The samples of a shard set as source images, for code that converts them again."""

from tta_pipeline.data.images.listing import ListedImage
from tta_pipeline.errors import ManifestError
from tta_pipeline.shards.shard_set import ShardSet


def stored_images(shard_set: ShardSet) -> tuple[ListedImage, ...]:
    """Return the samples of *shard_set* in stored order, as slices of its shards, which must not change.

    Reading an image compares its sha256.
    """
    if shard_set.remote is not None:
        raise ManifestError(
            f"{shard_set.folder} has only the URLs of its shards, such as {shard_set.remote.shards[0].url}; expected "
            "the shards themselves: download the folder at that URL, and pass the copy"
        )
    shard_set.require_intact()
    paths = [shard_set.folder / shard.name for shard in shard_set.manifest.shards]
    modified_ns = [path.stat().st_mtime_ns for path in paths]
    return tuple(
        ListedImage(
            class_name=shard_set.manifest.classes[row["label"]],
            file_name=row["source_name"].rpartition("/")[2],
            path=str(paths[row["shard"]]),
            size_bytes=row["size_bytes"],
            modified_ns=modified_ns[row["shard"]],
            offset=row["offset"],
            sha256=row["sha256"],
        )
        for row in shard_set.index.table.to_pylist()
    )
