"""Sensor that launches the pieces of submissions, stage by stage; Dagster's queue and run launcher do the rest."""

from collections.abc import Collection, Iterator, Mapping, Sequence

import dagster as dg

from tta_pipeline.benchmarks.benchmark import Benchmark
from tta_pipeline.defs.in_process import asset_keys, range_tags
from tta_pipeline.defs.piece_runs import submitted_config
from tta_pipeline.defs.resources import ShardStore
from tta_pipeline.defs.resources.queued_runs import (
    PIECE_TAG,
    SENSOR,
    SUBMISSION_TAG,
    cancel_runs,
    has_ended,
    history_id,
    is_active,
    newest_runs,
)
from tta_pipeline.defs.run_tags import MAX_RETRIES, RETRY_ON_FAILURE
from tta_pipeline.domain.locations import Locations
from tta_pipeline.errors import SubmissionError
from tta_pipeline.evaluation.work.pieces import STAGES
from tta_pipeline.extras.cluster.engine import NUM_TRIES
from tta_pipeline.extras.cluster.submission import Submission, find_open_folders
from tta_pipeline.util.plurals import count_of

_INTERVAL_S = 5
_MAX_LAUNCHES = 50
"""Most pieces that one evaluation of the sensor launches: Dagster allows it a minute."""


def submissions_sensor(benchmarks: Mapping[str, Benchmark]) -> dg.SensorDefinition:
    """Return the sensor that launches submissions made with `tta-pipeline submit`.

    It is off until the first submission turns it on; see `QueuedRuns.start`. It keeps no cursor: it launches every
    piece that has no run, including a piece whose run was deleted.
    """

    @dg.sensor(
        name=SENSOR,
        asset_selection=dg.AssetSelection.all(),
        minimum_interval_seconds=_INTERVAL_S,
        default_status=dg.DefaultSensorStatus.STOPPED,
        description="Launches submissions made with `tta-pipeline submit`, one run for each piece, stage by stage.",
    )
    def sensor(context: dg.SensorEvaluationContext, store: ShardStore) -> dg.SensorResult | dg.SkipReason:
        found = tuple(_launchable_submissions(context, store.locations, benchmarks))
        requests = [
            _request(benchmark, submission, number)
            for benchmark, submission in found
            for number in _pieces_to_launch(context.instance, submission)
        ]
        if not requests:
            return dg.SkipReason(f"found no piece to launch in {count_of(len(found), 'submission')}")
        return dg.SensorResult(run_requests=requests)

    return sensor


def _launchable_submissions(
    context: dg.SensorEvaluationContext, locations: Locations, benchmarks: Mapping[str, Benchmark]
) -> Iterator[tuple[Benchmark, Submission]]:
    """Yield the submissions to launch, each with its benchmark; skip those that are damaged or out of date."""
    assets = context.repository_def.asset_graph.get_all_asset_keys() if context.repository_def else ()
    for benchmark in benchmarks.values():
        for submission in _claimed_submissions(context, locations, benchmark):
            if submission.is_cancelled:
                # A run may have begun while the user cancelled: by this sensor, or as a retry.
                cancel_runs(context.instance, submission)
                if has_ended(context.instance, submission):
                    submission.mark_ended()
            elif missing := _first_missing_asset(benchmark, submission, assets):
                context.log.error(
                    f"submission {submission.number} of {benchmark.name} names {missing}, which the benchmark file no "
                    f"longer has; nothing more of it starts: tta-pipeline submit {benchmark.name}"
                )
                submission.mark_cancelled()
            else:
                yield benchmark, submission


def _claimed_submissions(
    context: dg.SensorEvaluationContext, locations: Locations, benchmark: Benchmark
) -> Iterator[Submission]:
    """Yield the open submissions of *benchmark* that this sensor has claimed.

    Several code locations of one history may read the same data root, each with its own sensor. The first sensor to see
    a submission claims all of it. Submissions of another Dagster are skipped.
    """
    history = history_id(context.instance)
    location = context.code_location_origin.location_name if context.code_location_origin else "none"
    for folder in find_open_folders(locations, benchmark.name):
        try:
            submission = Submission.read(folder)
            if submission.owner == history and submission.claim(location) == location:
                yield submission
        except SubmissionError as error:
            context.log.error(str(error))  # noqa: TRY400 - the message says all that the user needs


def _first_missing_asset(benchmark: Benchmark, submission: Submission, assets: Collection[dg.AssetKey]) -> str:
    """Return the first asset of *submission* that does not exist; empty if all do."""
    keys = (key for piece in submission.pieces for key in asset_keys(benchmark, piece))
    return next((key.to_user_string() for key in keys if key not in assets), "")


def _pieces_to_launch(instance: dg.DagsterInstance, submission: Submission) -> Sequence[int]:
    """Return the pieces of *submission* to launch now: all of one stage, once the stage before it has ended."""
    runs, retries = newest_runs(instance, submission), instance.run_retries_enabled
    for stage in STAGES:
        numbers = submission.piece_numbers(stage)
        if left := [number for number in numbers if _needs_launch(runs.get(number))]:
            return left[:_MAX_LAUNCHES]
        if any(is_active(runs[number], retries=retries) for number in numbers):
            return ()
    submission.mark_ended()
    return ()


def _needs_launch(run: dg.DagsterRun | None) -> bool:
    """Return whether a piece has no *run*, or has one that a daemon created and died before queueing.

    Dagster finds such a run again by its run key.
    """
    return run is None or run.status is dg.DagsterRunStatus.NOT_STARTED


def _request(benchmark: Benchmark, submission: Submission, number: int) -> dg.RunRequest:
    piece = submission.pieces[number]
    return dg.RunRequest(
        run_key=f"{submission.key}/{number}",
        asset_selection=asset_keys(benchmark, piece),
        run_config=submitted_config(submission, piece),
        tags={
            **range_tags(piece.keys),
            SUBMISSION_TAG: submission.key,
            PIECE_TAG: str(number),
            MAX_RETRIES: str(NUM_TRIES - 1),
            RETRY_ON_FAILURE: "true",
        },
    )
