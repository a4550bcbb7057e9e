"""The Dagster run of a piece of a submission: its asset keys, partitions and configuration."""

from collections.abc import Mapping

import dagster as dg

from tta_pipeline.benchmarks.benchmark import Benchmark
from tta_pipeline.defs.in_process import materialize_in_process
from tta_pipeline.extras.cluster.pieces import Piece
from tta_pipeline.extras.cluster.submission import Submission
from tta_pipeline.util.json_values import JsonObject

RANGE_START, RANGE_END = "dagster/asset_partition_range_start", "dagster/asset_partition_range_end"


def asset_keys(benchmark: Benchmark, piece: Piece) -> list[dg.AssetKey]:
    """Return the keys of the assets of *piece*."""
    return [asset_key(benchmark, asset) for asset in piece.assets]


def asset_key(benchmark: Benchmark, asset: str) -> dg.AssetKey:
    """Return the full key of *asset*, whose name is relative to *benchmark*."""
    return dg.AssetKey([*benchmark.name.split("/"), *asset.split("/")])


def partition_tags(piece: Piece) -> Mapping[str, str]:
    """Return the run tags with the partition range of *piece*; empty if it has no partitions."""
    return {RANGE_START: piece.keys[0], RANGE_END: piece.keys[-1]} if piece.keys else {}


def run_config(submission: Submission, piece: Piece) -> JsonObject:
    """Return the configuration of the run of *piece*; only the report publishes records to the database.

    Otherwise many runs would copy the database in turn, on file systems whose locks may work on one machine only.
    """
    publishes = piece.stage == "report"
    return {
        "resources": {
            "metrics": {"config": {"publishes": publishes}},
            "compute": {"config": dict(submission.compute)},
        },
        "loggers": {"console": {}},
    }


def materialize_piece(
    definitions: dg.Definitions, benchmark: Benchmark, submission: Submission, piece: Piece
) -> dg.ExecuteInProcessResult:
    """Materialize *piece* in this process, in a history that ends with it."""
    with dg.DagsterInstance.ephemeral() as instance:
        return materialize_in_process(
            definitions,
            asset_keys(benchmark, piece),
            instance=instance,
            run_config=run_config(submission, piece),
            tags=partition_tags(piece),
        )
