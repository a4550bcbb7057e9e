"""The facts of a shard set that a table or a person wants: counts, bytes, inodes and times."""

from collections.abc import Mapping
from typing import Any

from tta_pipeline.shards.manifest import WriterRecord
from tta_pipeline.shards.read_back import Published

_NUM_OWN_FILES = 5  # writer's record, manifest, sample index, checksums and the note of what was verified


def shard_set_facts(
    published: Published, record: WriterRecord | None, *, shard_set: str = "shards"
) -> Mapping[str, Any]:
    """Return one row of the table `shard_sets`, with the rows of `shards` under "shards".

    Args:
        published: The shard set.
        record: What its writer says; None if somebody else wrote it, and nobody knows how fast.
        shard_set: The transform that made it, or "shards" for a benchmark's first set.
    """
    manifest = published.shard_set.manifest
    num_inodes = len(manifest.shards) + _NUM_OWN_FILES + 1
    num_loose_inodes = manifest.num_samples + len(manifest.classes) + 1
    return {
        "benchmark": manifest.benchmark,
        "shard_set": shard_set,
        "corruption": manifest.corruption,
        "severity": manifest.severity,
        "source_kind": manifest.source.kind,
        "generated": manifest.source.generated,
        "manifest_sha256": manifest.sha256,
        "class_map_sha256": manifest.class_map_sha256,
        "order_hash": manifest.order.sha256,
        "num_classes": len(manifest.classes),
        "num_samples": manifest.num_samples,
        "num_shards": len(manifest.shards),
        "payload_bytes": manifest.payload_bytes,
        "shard_bytes": manifest.shard_bytes,
        "num_inodes": num_inodes,
        "num_loose_inodes": num_loose_inodes,
        "inode_reduction": num_loose_inodes / num_inodes,
        "write_wall_s": record and record.wall_s,
        "write_images_per_s": record and record.num_samples / record.wall_s,
        "read_back_wall_s": published.wall_s,
        "shards": [shard.model_dump() for shard in manifest.shards],
    }
