"""What Dagster and the database are told of a shard set whose manifest stands."""

from typing import TYPE_CHECKING

import dagster as dg

from tta_pipeline.assets.reporting import PartitionReport
from tta_pipeline.assets.scope import Scope
from tta_pipeline.partitions import Cell
from tta_pipeline.resources import MetricsStore

if TYPE_CHECKING:
    from tta_pipeline.shards.manifest import WriterRecord
    from tta_pipeline.shards.read_back import Published

_SHOWN = (
    "num_samples", "num_classes", "num_shards", "payload_bytes", "shard_bytes", "num_inodes", "num_loose_inodes",
    "inode_reduction", "read_back_wall_s", "order_hash", "manifest_sha256",
)  # fmt: skip


def record_shard_set(
    context: dg.AssetExecutionContext,
    scope: Scope[Cell],
    metrics: MetricsStore,
    *,
    published: "Published",
    record: "WriterRecord | None",
    started_at: str,
    transform: str | None = None,
) -> PartitionReport:
    """Store the record of a shard set whose manifest was built, and return what became of its cell.

    Args:
        context: Of the run.
        scope: The benchmark.
        metrics: Where records are stored.
        published: The shard set.
        record: What its writer says; None if somebody else wrote it.
        started_at: When its manifest was begun.
        transform: What made it from another set; None for the first.
    """
    from tta_pipeline.shards.facts import shard_set_row

    row = shard_set_row(published, record, benchmark_name=scope.benchmark.name, shard_set=transform or "shards")
    cell = published.shard_set.manifest.cell
    if published.was_built:
        metrics.record(
            scope.benchmark.name,
            kind="shard_sets",
            name="/".join([*([transform] if transform else []), f"{cell.corruption}-{cell.severity}"]),
            run_id=context.run.run_id,
            started_at=started_at,
            facts={**vars(row), "shards": [shard.model_dump() for shard in row.shards]},
        )
    did = "read back and indexed" if published.was_built else "unchanged"
    return PartitionReport(
        summary=f"{row.num_samples:,} samples {did}, {row.inode_reduction:,.0f} x fewer inodes",
        metadata={
            **{name: getattr(row, name) for name in _SHOWN},
            "dagster/partition_row_count" if scope.partitions else "dagster/row_count": row.num_samples,
            "was_built": published.was_built,
            "folder": dg.MetadataValue.path(published.shard_set.folder),
        },
        data_version=row.manifest_sha256,
    )
