"""The Dagster run of a piece of a submission: its asset keys, partitions and configuration."""

from collections.abc import Mapping, Sequence

import dagster as dg

from tta_pipeline.benchmarks.benchmark import Benchmark
from tta_pipeline.defs.in_process import materialize_in_process
from tta_pipeline.defs.run_tags import RANGE_END, RANGE_START
from tta_pipeline.defs.scope import asset_key
from tta_pipeline.extras.cluster.pieces import Piece
from tta_pipeline.extras.cluster.submission import Submission
from tta_pipeline.util.json_values import JsonObject


def asset_keys(benchmark: Benchmark, piece: Piece) -> list[dg.AssetKey]:
    """Return the keys of the assets of *piece*."""
    return [asset_key(benchmark, asset) for asset in piece.assets]


def range_tags(keys: Sequence[str]) -> Mapping[str, str]:
    """Return the run tags with the partition range from the first to the last of *keys*; empty if there are none."""
    return {RANGE_START: keys[0], RANGE_END: keys[-1]} if keys else {}


def run_config(compute: JsonObject, *, publishes: bool) -> JsonObject:
    """Return the configuration of a run with the settings *compute*.

    Args:
        compute: Settings of the resource of this name.
        publishes: Whether the run publishes results to the database.
    """
    return {
        "resources": {"metrics": {"config": {"publishes": publishes}}, "compute": {"config": dict(compute)}},
        "loggers": {"console": {}},
    }


def submitted_config(submission: Submission, piece: Piece) -> JsonObject:
    """Return the configuration of the run of *piece*; only the report publishes results to the database.

    Otherwise many runs would copy the database in turn, on file systems whose locks may work on one machine only.
    """
    return run_config(submission.compute, publishes=piece.stage == "report")


def materialize_piece(
    definitions: dg.Definitions,
    benchmark: Benchmark,
    piece: Piece,
    *,
    instance: dg.DagsterInstance,
    run_config: JsonObject,
    force: bool = False,
) -> dg.ExecuteInProcessResult:
    """Materialize *piece* in this process, with its run in the history of *instance*.

    With *force*, finished cells are evaluated again.
    """
    keys = asset_keys(benchmark, piece)
    forced = {key.to_python_identifier(): {"config": {"force": True}} for key in keys} if force else {}
    return materialize_in_process(
        definitions,
        keys,
        instance=instance,
        run_config={**run_config, "ops": forced} if piece.stage == "evaluations" else run_config,
        tags=range_tags(piece.keys),
    )


def materialize_submitted_piece(
    definitions: dg.Definitions, benchmark: Benchmark, submission: Submission, piece: Piece
) -> dg.ExecuteInProcessResult:
    """Materialize *piece* of *submission* in this process, in a history that ends with it."""
    with dg.DagsterInstance.ephemeral() as instance:
        config = submitted_config(submission, piece)
        return materialize_piece(definitions, benchmark, piece, instance=instance, run_config=config)
