"""The program that a job of a cluster runs: one piece of a submission.

It keeps no history of its own: SQLite on a network file system loses data or locks up. What it makes is files, from
which `tta-pipeline submit --status` makes the history.
"""

import sys
from pathlib import Path

import dagster as dg
from dagster._core.errors import DagsterExecutionInterruptedError

from tta_pipeline.benchmarks.loading import load_all
from tta_pipeline.defs.pieces import asset_keys, partition_tags, run_config
from tta_pipeline.extras.cluster.submission import Submission
from tta_pipeline.util import stopping
from tta_pipeline.util.locations import Locations

_USAGE = "usage: python -m tta_pipeline.defs.piece SUBMISSION KEY NUMBER"


def main() -> None:
    """Materialize the piece, note how it ended, and end with status 0, 1, or `stopping.EXIT_STATUS` to go on later."""
    if len(sys.argv) != 4:
        sys.exit(_USAGE)
    stopping.listen()
    submission, key, number = Submission.read(Path(sys.argv[1])), sys.argv[2], int(sys.argv[3])
    if submission.key != key:
        sys.exit(
            f"{submission.folder} has {submission.key}; expected {key}: it was removed, and another one took its place"
        )
    result = _materialize(submission, number)
    if not result.success and stopping.is_asked():
        sys.exit(stopping.EXIT_STATUS)
    if not _was_interrupted(result):  # somebody who cancels a job does not make it a failure
        submission.note_outcome(number, "done" if result.success else "failed")
    sys.exit(0 if result.success else 1)


def _materialize(submission: Submission, number: int) -> dg.ExecuteInProcessResult:
    """Materialize the piece *number* in this process, and return what became of it."""
    from tta_pipeline.definitions import defs

    piece = submission.pieces[number]
    benchmark = load_all(Locations.from_environment()).benchmark(submission.benchmark)
    keys = asset_keys(benchmark, piece)
    job = defs.resolve_implicit_job_def_def_for_assets(keys)
    assert job is not None, "the assets of a piece have one kind of partitions"
    with dg.DagsterInstance.ephemeral() as instance:
        return job.execute_in_process(
            asset_selection=keys,
            tags=partition_tags(piece),
            run_config=run_config(submission, piece),
            instance=instance,
            raise_on_error=False,
        )


def _was_interrupted(result: dg.ExecuteInProcessResult) -> bool:
    """Return whether SIGTERM or SIGINT ended the run: Dagster makes an error of them."""
    errors = [event.step_failure_data.error for event in result.all_events if event.is_step_failure]
    return any(error is not None and DagsterExecutionInterruptedError.__name__ in error.to_string() for error in errors)


if __name__ == "__main__":
    main()
