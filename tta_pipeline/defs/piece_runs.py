"""Runs of pieces of a submission: which assets, at which partitions, with which configuration."""

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
    """Return the key of *asset*, which is named below *benchmark*."""
    return dg.AssetKey([*benchmark.name.split("/"), *asset.split("/")])


def partition_tags(piece: Piece) -> Mapping[str, str]:
    """Return the run tags that say at which partitions *piece* is materialized; none if it has no partitions."""
    return {RANGE_START: piece.keys[0], RANGE_END: piece.keys[-1]} if piece.keys else {}


def run_config(submission: Submission, piece: Piece) -> JsonObject:
    """Return the configuration of the run of *piece*: it leaves its records for the report, which publishes them all.

    Many runs would otherwise copy the database one after the other, on file systems whose locks may hold on one
    machine only.
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
