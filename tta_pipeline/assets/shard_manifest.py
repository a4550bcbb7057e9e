"""`<benchmark>/shard_manifest`: what one cell's shards hold, proven by reading them back, and its checks."""

from collections.abc import Iterator, Sequence
from typing import Any

import dagster as dg

from tta_pipeline.assets.reporting import CellReport, CheckReport, check_cells, materialize_cells
from tta_pipeline.assets.scope import Scope
from tta_pipeline.locations import Locations
from tta_pipeline.partitions import Cell
from tta_pipeline.resources import MetricsStore, ShardStore

SHARDS_MATCH = "shards_match_manifest"
SOURCE_MATCHES = "source_count_equals_manifest"
CLASSES_PRESENT = "every_class_present"


def shard_manifest(scope: Scope) -> dg.AssetsDefinition:
    """Return the asset of the manifest."""

    @scope.asset(
        "shard_manifest",
        deps=[scope.key("tar_shards")],
        kinds={"parquet"},
        code_version="1",
        description="The index of the shards: key, source name, label, shard, byte offset, size and sha256 of each "
        "sample, read back from the tars by other code than wrote them.",
    )
    def asset(
        context: dg.AssetExecutionContext, store: ShardStore, metrics: MetricsStore
    ) -> Iterator[dg.MaterializeResult[Any]]:
        yield from materialize_cells(
            context, scope, lambda cell: _publish(context, scope, store.locations, metrics, cell)
        )
        metrics.publish(context.log)

    return asset


def shard_manifest_checks(scope: Scope) -> dg.AssetChecksDefinition:
    """Return the checks of the manifest against shards, source and class map."""
    key = scope.key("shard_manifest")
    descriptions = {
        SHARDS_MATCH: "Every shard on disk is hashed again and equals the manifest in name, size and sha256.",
        SOURCE_MATCHES: "The source is as it was converted, and the manifest has as many samples.",
        CLASSES_PRESENT: "Every class of the class map has at least one sample.",
    }

    @dg.multi_asset_check(
        name=f"{key.to_python_identifier()}_checks",
        specs=[
            dg.AssetCheckSpec(name, asset=key, description=text, partitions_def=scope.partitions)
            for name, text in descriptions.items()
        ],
    )
    def checks(context: dg.AssetCheckExecutionContext, store: ShardStore) -> Iterator[Any]:
        yield from check_cells(
            context, scope, key, list(descriptions), lambda cell: _check(scope, store.locations, cell)
        )

    return checks


def _publish(
    context: dg.AssetExecutionContext, scope: Scope, locations: Locations, metrics: MetricsStore, cell: Cell
) -> CellReport:
    from tta_pipeline.metrics.records import now
    from tta_pipeline.progress import Progress
    from tta_pipeline.shards.facts import shard_set_facts
    from tta_pipeline.shards.manifest import WRITER_FILE, WriterRecord, read_record
    from tta_pipeline.shards.read_back import publish_shard_set
    from tta_pipeline.sources import benchmark_class_map

    benchmark, started_at = scope.benchmark, now()
    folder = locations.shards(benchmark.name, cell)
    record = read_record(folder / WRITER_FILE, WriterRecord)
    class_map = benchmark_class_map(benchmark, locations)
    progress = Progress(context.log.info, what=cell.key, num_images=record.num_samples)
    published = publish_shard_set(folder, class_map, progress)
    facts = shard_set_facts(published, record)
    if published.was_built:
        metrics.record(
            benchmark.name,
            kind="shard_sets",
            name=f"{cell.corruption}-{cell.severity}",
            run_id=context.run_id,
            started_at=started_at,
            facts=facts,
        )
    did = "read back and indexed" if published.was_built else "unchanged"
    shown = (
        "num_samples", "num_classes", "num_shards", "payload_bytes", "shard_bytes", "num_inodes", "num_loose_inodes",
        "inode_reduction", "read_back_wall_s", "order_hash", "manifest_sha256",
    )  # fmt: skip
    return CellReport(
        summary=f"{facts['num_samples']:,} samples {did}, {facts['inode_reduction']:,.0f} x fewer inodes",
        metadata={
            **{name: facts[name] for name in shown},
            "dagster/partition_row_count" if scope.partitions else "dagster/row_count": facts["num_samples"],
            "was_built": published.was_built,
            "folder": dg.MetadataValue.path(folder),
        },
        data_version=str(facts["manifest_sha256"]),
    )


def _check(scope: Scope, locations: Locations, cell: Cell) -> Sequence[CheckReport]:
    from tta_pipeline.shards.manifest import ShardSet
    from tta_pipeline.shards.verification import missing_classes, shard_problems
    from tta_pipeline.sources import open_source

    shard_set = ShardSet.open(locations.shards(scope.benchmark.name, cell))
    problems = list(shard_problems(shard_set))
    source, num_samples = shard_set.manifest.source, shard_set.manifest.num_samples
    is_unchanged = open_source(scope.benchmark, locations).version(cell) == source.version
    missing = missing_classes(shard_set)
    return (
        CheckReport(check=SHARDS_MATCH, passed=not problems, metadata={"problems": "; ".join(problems) or "none"}),
        CheckReport(
            check=SOURCE_MATCHES,
            passed=is_unchanged and source.num_taken == num_samples,
            metadata={
                "source_is_unchanged": is_unchanged,
                "num_source_images": source.num_images,
                "num_skipped": len(source.skipped),
                "num_foreign": source.num_foreign,
                "num_samples": num_samples,
            },
        ),
        CheckReport(check=CLASSES_PRESENT, passed=not missing, metadata={"missing": ", ".join(missing) or "none"}),
    )
