"""The program that a job of a cluster runs: one piece of a submission.

It keeps no history of its own: SQLite on a network file system loses data or locks up. What it makes is files, from
which `tta-pipeline submit --status` makes the history.
"""

import sys
from pathlib import Path

import dagster as dg

from tta_pipeline import stopping
from tta_pipeline.assets.pieces import asset_keys, partition_tags, run_config
from tta_pipeline.benchmarks.loading import load_all
from tta_pipeline.cluster.submission import Submission
from tta_pipeline.locations import Locations

_USAGE = "usage: python -m tta_pipeline.assets.piece SUBMISSION KEY NUMBER"


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
    succeeded = _materialize(submission, number)
    if not succeeded and stopping.is_asked():
        sys.exit(stopping.EXIT_STATUS)
    submission.note_outcome(number, "done" if succeeded else "failed")
    sys.exit(0 if succeeded else 1)


def _materialize(submission: Submission, number: int) -> bool:
    """Materialize the piece *number* in this process, and return whether all of it succeeded."""
    from tta_pipeline.definitions import defs

    piece = submission.pieces[number]
    benchmark = load_all(Locations.from_environment()).benchmark(submission.benchmark)
    keys = asset_keys(benchmark, piece)
    job = defs.resolve_implicit_job_def_def_for_assets(keys)
    assert job is not None, "the assets of a piece have one kind of partitions"
    with dg.DagsterInstance.ephemeral() as instance:
        result = job.execute_in_process(
            asset_selection=keys,
            tags=partition_tags(piece),
            run_config=run_config(submission, piece),
            instance=instance,
            raise_on_error=False,
        )
    return result.success


if __name__ == "__main__":
    main()
