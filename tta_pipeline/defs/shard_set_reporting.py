"""Reports a shard set with a manifest to Dagster and to the database."""

from typing import TYPE_CHECKING

import dagster as dg

from tta_pipeline.defs.reporting import PartitionReport
from tta_pipeline.defs.scope import Scope
from tta_pipeline.domain.cells import Cell
from tta_pipeline.util.plurals import count_of

if TYPE_CHECKING:
    from tta_pipeline.shards.set_contents import PublishedShardSet
    from tta_pipeline.shards.set_facts import WriterRecord

_SHOWN = (
    "num_samples", "num_classes", "num_shards", "payload_bytes", "shard_bytes", "num_inodes", "num_loose_inodes",
    "inode_reduction", "read_back_wall_s", "order_hash", "manifest_sha256",
)  # fmt: skip


def record_shard_set(
    context: dg.AssetExecutionContext,
    scope: Scope[Cell],
    *,
    published: "PublishedShardSet",
    record: "WriterRecord | None",
    started_at: str,
) -> PartitionReport:
    """Record the measurements of a shard set if its manifest was built, and return the report on its cell.

    Args:
        context: Context of the run.
        scope: Scope of the asset.
        published: The shard set.
        record: Record of the set's writer; None for shards made by others.
        started_at: Time at which the work on the manifest began.
    """
    from tta_pipeline.results.shard_set_rows import write_shard_set_row
    from tta_pipeline.shards.shard_set_row import shard_set_row

    row = shard_set_row(published, record, benchmark_name=scope.benchmark.file, dataset=scope.benchmark.dataset.name)
    if published.was_built:
        write_shard_set_row(published.shard_set.folder, vars(row), run_id=context.run.run_id, started_at=started_at)
    did = "read back and indexed" if published.was_built else "unchanged"
    return PartitionReport(
        summary=f"{count_of(row.num_samples, 'sample')} {did}, {row.inode_reduction:,.0f} x fewer inodes",
        metadata={
            **{name: getattr(row, name) for name in _SHOWN},
            "dagster/partition_row_count" if scope.partitions else "dagster/row_count": row.num_samples,
            "was_built": published.was_built,
            "folder": dg.MetadataValue.path(published.shard_set.folder),
        },
        data_version=row.manifest_sha256,
    )
