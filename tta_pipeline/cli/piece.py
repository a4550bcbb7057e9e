"""The program that each task of a Slurm job runs: one piece of a submission.

It keeps no Dagster history: SQLite on a network file system loses data or locks up. It writes files, and
`tta-pipeline submit --status` builds the history from them.
"""

import sys
from pathlib import Path

from tta_pipeline.benchmarks.load_files import load_all_benchmarks
from tta_pipeline.domain.locations import Locations
from tta_pipeline.extras.cluster.submission import Submission
from tta_pipeline.util import graceful_stop

_USAGE = "usage: python -m tta_pipeline.cli.piece SUBMISSION KEY NUMBER"


def main() -> None:
    """Materialize the piece, note its outcome, and exit with 0, 1, or `stopping.EXIT_STATUS` to be continued later."""
    if len(sys.argv) != 4:
        sys.exit(_USAGE)
    graceful_stop.handle_stop_signal()
    submission, key, number = Submission.read(Path(sys.argv[1])), sys.argv[2], int(sys.argv[3])
    if submission.key != key:
        sys.exit(f"{submission.folder} has {submission.key}; expected {key}: the submission was removed and replaced")
    from tta_pipeline.definitions import defs  # only now: a signal meanwhile asks the piece to end
    from tta_pipeline.defs.in_process import was_interrupted
    from tta_pipeline.defs.piece_runs import materialize_submitted_piece

    benchmark = load_all_benchmarks(Locations.from_environment()).benchmark(submission.benchmark)
    result = materialize_submitted_piece(defs, benchmark, submission, submission.pieces[number])
    if not result.success and graceful_stop.is_stop_requested():
        sys.exit(graceful_stop.EXIT_STATUS)
    if not was_interrupted(result):  # a cancelled job is not a failed one
        submission.write_outcome(number, "done" if result.success else "failed")
    sys.exit(0 if result.success else 1)


if __name__ == "__main__":
    main()
