"""Whether a shard set still is what its manifest says, every byte hashed again."""

from collections.abc import Iterator

import numpy as np

from tta_pipeline.shards.manifest import ShardSet, file_sha256


def shard_problems(shard_set: ShardSet) -> Iterator[str]:
    """Yield every difference between the shards on disk and the manifest: sizes, then names both ways, then hashes."""
    expected = {shard.name: shard for shard in shard_set.manifest.shards}
    present = {path.name: path for path in sorted(shard_set.folder.glob("*.tar"))}
    for name in sorted(present.keys() - expected.keys()):
        yield f"{present[name]} is not in the manifest"
    for name, shard in expected.items():
        path = present.get(name)
        if path is None:
            yield f"{shard_set.folder / name} is missing"
        elif path.stat().st_size != shard.shard_bytes:
            yield f"{path} has {path.stat().st_size} bytes; expected {shard.shard_bytes}"
        elif file_sha256(path) != shard.sha256:
            yield f"{path} does not hash to {shard.sha256}"


def missing_classes(shard_set: ShardSet) -> tuple[str, ...]:
    """Return the classes of the class map that no sample has."""
    counts = np.bincount(shard_set.index.labels, minlength=len(shard_set.manifest.classes))
    return tuple(name for name, count in zip(shard_set.manifest.classes, counts, strict=True) if not count)
