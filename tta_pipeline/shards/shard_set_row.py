"""The facts of a shard set for tables and the user: counts, bytes, inodes and times."""

from dataclasses import dataclass

import numpy as np

from tta_pipeline.shards.set_contents import PublishedShardSet
from tta_pipeline.shards.set_facts import WriterRecord

_NUM_OWN_FILES = 6  # writer's record, manifest, sample index, checksums, measurements, record of verified shards


@dataclass(frozen=True, kw_only=True)
class ShardSetRow:
    """One row of the table `shard_sets`."""

    benchmark: str
    dataset: str
    corruption: str
    severity: int
    source_kind: str
    generated: bool
    manifest_sha256: str
    order_hash: str
    stored_order: str
    """Order of the samples in the shards, with its seed."""
    num_classes: int
    num_classes_found: int
    num_samples: int
    num_shards: int
    payload_bytes: int
    shard_bytes: int
    num_inodes: int
    num_loose_inodes: int
    inode_reduction: float
    write_wall_s: float | None
    """Seconds for writing the shards; None for third-party shards."""
    write_images_per_s: float | None
    read_back_wall_s: float


def shard_set_row(
    published: PublishedShardSet,
    record: WriterRecord | None,
    *,
    benchmark_name: str,
    dataset: str,
) -> ShardSetRow:
    """Return the row of a shard set.

    Args:
        published: The shard set.
        record: The writer's record; None for third-party shards.
        benchmark_name: Name of the benchmark here; the manifest of third-party shards may contain another name.
        dataset: Name of the dataset.
    """
    manifest = published.shard_set.manifest
    num_inodes = len(manifest.shards) + _NUM_OWN_FILES + 1
    num_loose_inodes = manifest.num_samples + len(manifest.classes) + 1
    return ShardSetRow(
        benchmark=benchmark_name,
        dataset=dataset,
        corruption=manifest.corruption,
        severity=manifest.severity,
        source_kind=manifest.source.kind,
        generated=manifest.source.generated,
        manifest_sha256=manifest.sha256,
        order_hash=manifest.order.sha256,
        stored_order=f"{manifest.order.name}, seed {manifest.order.seed}",
        num_classes=len(manifest.classes),
        num_classes_found=len(np.unique(published.shard_set.index.labels)),
        num_samples=manifest.num_samples,
        num_shards=len(manifest.shards),
        payload_bytes=manifest.payload_bytes,
        shard_bytes=manifest.shard_bytes,
        num_inodes=num_inodes,
        num_loose_inodes=num_loose_inodes,
        inode_reduction=num_loose_inodes / num_inodes,
        write_wall_s=record.wall_s if record else None,
        write_images_per_s=record.num_samples / record.wall_s if record else None,
        read_back_wall_s=published.wall_s,
    )
