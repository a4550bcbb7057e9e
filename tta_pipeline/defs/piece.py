"""The program of a cluster job, which runs one piece of a submission.

It keeps no Dagster history: SQLite on a network file system loses data or locks up. It writes files, and
`tta-pipeline submit --status` builds the history from them.
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
    """Materialize the piece, note its outcome, and exit with 0, 1, or `stopping.EXIT_STATUS` to be continued later."""
    if len(sys.argv) != 4:
        sys.exit(_USAGE)
    stopping.listen()
    submission, key, number = Submission.read(Path(sys.argv[1])), sys.argv[2], int(sys.argv[3])
    if submission.key != key:
        sys.exit(f"{submission.folder} has {submission.key}; expected {key}: the submission was removed and replaced")
    result = _materialize(submission, number)
    if not result.success and stopping.is_asked():
        sys.exit(stopping.EXIT_STATUS)
    if not _was_interrupted(result):  # a cancelled job is not a failed one
        submission.note_outcome(number, "done" if result.success else "failed")
    sys.exit(0 if result.success else 1)


def _materialize(submission: Submission, number: int) -> dg.ExecuteInProcessResult:
    """Materialize the piece *number* in this process, and return the result."""
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
    """Return whether SIGTERM or SIGINT ended the run, which Dagster reports as an error of the step."""
    errors = [event.step_failure_data.error for event in result.all_events if event.is_step_failure]
    return any(error is not None and DagsterExecutionInterruptedError.__name__ in error.to_string() for error in errors)


if __name__ == "__main__":
    main()
