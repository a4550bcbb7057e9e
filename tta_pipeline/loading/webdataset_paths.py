"""Paths of shards as `webdataset` can open them."""

from tta_pipeline.errors import LoaderError
from tta_pipeline.shards.shard_set import ShardSet


def shard_paths(shard_set: ShardSet) -> list[str]:
    """Return the paths of the shards in a form that webdataset can open."""
    folder = shard_set.folder.absolute()
    if "#" in str(folder) or "?" in str(folder):
        raise LoaderError(
            f"{folder} contains a # or ?, which webdataset would read as part of a URL; expected a path without "
            "either: copy the shard set to one"
        )
    # Absolute, since webdataset passes a name that begins with `pipe:` to a shell.
    return [str(folder / shard.name) for shard in shard_set.manifest.shards]
