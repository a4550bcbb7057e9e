"""The program that each task of a Slurm job runs: one piece of a submission.

It keeps no history of its own: SQLite on a network file system loses data or locks up. It writes files, from which
`tta-pipeline submit --status` makes the history.
"""

import sys
from pathlib import Path

from tta_pipeline.benchmarks.loading import load_all
from tta_pipeline.extras.cluster.submission import Submission
from tta_pipeline.util import stopping
from tta_pipeline.util.locations import Locations

_USAGE = "usage: python -m tta_pipeline.cli.piece SUBMISSION KEY NUMBER"


def main() -> None:
    """Materialize the piece, note how it ended, and exit with status 0, 1, or `stopping.EXIT_STATUS` to go on later."""
    if len(sys.argv) != 4:
        sys.exit(_USAGE)
    stopping.listen()
    submission, key, number = Submission.read(Path(sys.argv[1])), sys.argv[2], int(sys.argv[3])
    if submission.key != key:
        sys.exit(
            f"{submission.folder} has {submission.key}; expected {key}: it was removed, and another one took its place"
        )
    from tta_pipeline.definitions import defs  # only now: a signal meanwhile asks the piece to end
    from tta_pipeline.defs.in_process import was_interrupted
    from tta_pipeline.defs.piece_runs import materialize_piece

    benchmark = load_all(Locations.from_environment()).benchmark(submission.benchmark)
    result = materialize_piece(defs, benchmark, submission, submission.pieces[number])
    if not result.success and stopping.is_asked():
        sys.exit(stopping.EXIT_STATUS)
    if not was_interrupted(result):  # somebody who cancels a job does not make it a failure
        submission.note_outcome(number, "done" if result.success else "failed")
    sys.exit(0 if result.success else 1)


if __name__ == "__main__":
    main()
