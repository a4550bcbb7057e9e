"""The Dagster run of a piece of a submission."""

import dagster as dg

from tta_pipeline.benchmarks.benchmark import Benchmark
from tta_pipeline.defs.in_process import materialize_piece, run_config
from tta_pipeline.evaluation.work.pieces import Piece
from tta_pipeline.extras.cluster.submission import Submission
from tta_pipeline.util.json_values import JsonObject


def submitted_config(submission: Submission, piece: Piece) -> JsonObject:
    """Return the configuration of the run of *piece*; only the report publishes results to the database.

    Otherwise many runs would copy the database in turn, on file systems whose locks may work on one machine only.
    """
    return run_config(submission.compute, publishes=piece.stage == "report")


def materialize_submitted_piece(
    definitions: dg.Definitions, benchmark: Benchmark, submission: Submission, piece: Piece
) -> dg.ExecuteInProcessResult:
    """Materialize *piece* of *submission* in this process, in a history that ends with it."""
    with dg.DagsterInstance.ephemeral() as instance:
        config = submitted_config(submission, piece)
        return materialize_piece(definitions, benchmark, piece, instance=instance, run_config=config)
