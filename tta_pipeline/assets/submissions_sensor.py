"""A sensor that launches the pieces of submissions, stage by stage; Dagster's queue and run launcher do the rest."""

import json
from collections.abc import Collection, Iterator, Mapping

import dagster as dg
from dagster._core.storage.tags import MAX_RETRIES_TAG, RETRY_ON_ASSET_OR_OP_FAILURE_TAG

from tta_pipeline.assets.pieces import asset_keys, partition_tags, run_config
from tta_pipeline.benchmarks.benchmark import Benchmark
from tta_pipeline.cluster.engine import NUM_TRIES
from tta_pipeline.cluster.submission import Submission, open_folders
from tta_pipeline.errors import SubmissionError
from tta_pipeline.locations import Locations
from tta_pipeline.resources import ShardStore
from tta_pipeline.resources.queued_runs import ENGINES, PIECE_TAG, SUBMISSION_TAG, end_runs, is_under_way

_INTERVAL_S = 5
_AT_ONCE = 50
"""Pieces that one evaluation of the sensor launches at most: it has a minute."""


def submissions_sensor(benchmarks: Mapping[str, Benchmark]) -> dg.SensorDefinition:
    """Return the sensor of what the user submits to Dagster with `tta-pipeline submit`.

    It runs from the start: it does nothing until the user submits something.
    """

    @dg.sensor(
        name="submissions",
        asset_selection=dg.AssetSelection.all(),
        minimum_interval_seconds=_INTERVAL_S,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description="Launches what was submitted with `tta-pipeline submit`, one run for each piece, stage by stage.",
    )
    def sensor(context: dg.SensorEvaluationContext, store: ShardStore) -> dg.SensorResult | dg.SkipReason:
        launched: dict[str, int] = json.loads(context.cursor) if context.cursor else {}
        requests: list[dg.RunRequest] = []
        known = {}
        for benchmark, submission in _submissions(context, store.locations, benchmarks):
            before = launched.get(submission.key, 0)
            due = tuple(_due(context.instance, submission, before))
            requests += (_request(benchmark, submission, number) for number in due)
            known[submission.key] = before + len(due)
        context.update_cursor(json.dumps(known))
        if not requests:
            return dg.SkipReason(f"found no piece to launch in {len(known)} submissions")
        return dg.SensorResult(run_requests=requests)

    return sensor


def _submissions(
    context: dg.SensorEvaluationContext, locations: Locations, benchmarks: Mapping[str, Benchmark]
) -> Iterator[tuple[Benchmark, Submission]]:
    """Yield what Dagster is to do, with its benchmark; one that is damaged or out of date holds up no other."""
    assets = context.repository_def.asset_graph.get_all_asset_keys() if context.repository_def else ()
    for benchmark in benchmarks.values():
        for folder in open_folders(locations, benchmark.name):
            try:
                submission = Submission.read(folder)
            except SubmissionError as error:
                context.log.error(str(error))  # noqa: TRY400 - the message says all that is to be known
                continue
            if submission.engine not in ENGINES:
                continue
            if submission.is_cancelled:
                # Of a run that an evaluation of this sensor, or a second try, began while the user cancelled.
                end_runs(context.instance, submission)
            elif missing := _missing(benchmark, submission, assets):
                context.log.error(
                    f"submission {submission.number} of {benchmark.name} names {missing}, which the benchmark file no "
                    f"longer has; nothing more of it starts: tta-pipeline submit {benchmark.name}"
                )
                submission.note_cancelled()
            else:
                yield benchmark, submission


def _missing(benchmark: Benchmark, submission: Submission, assets: Collection[dg.AssetKey]) -> str:
    """Return the first asset of *submission* that does not exist; empty if all do."""
    keys = (key for piece in submission.pieces for key in asset_keys(benchmark, piece))
    return next((key.to_user_string() for key in keys if key not in assets), "")


def _due(instance: dg.DagsterInstance, submission: Submission, num_launched: int) -> Iterator[int]:
    """Yield the pieces of *submission* to launch now: of one stage, which begins when the one before has ended."""
    pieces = submission.pieces
    if num_launched == len(pieces):
        return
    stage = pieces[num_launched].stage
    begins = num_launched > 0 and pieces[num_launched - 1].stage != stage
    if begins and is_under_way(instance, submission):
        return
    for number in range(num_launched, min(num_launched + _AT_ONCE, len(pieces))):
        if pieces[number].stage == stage:
            yield number


def _request(benchmark: Benchmark, submission: Submission, number: int) -> dg.RunRequest:
    piece = submission.pieces[number]
    return dg.RunRequest(
        run_key=f"{submission.key}/{number}",
        asset_selection=asset_keys(benchmark, piece),
        run_config=run_config(submission, piece),
        tags={
            **partition_tags(piece),
            SUBMISSION_TAG: submission.key,
            PIECE_TAG: str(number),
            MAX_RETRIES_TAG: str(NUM_TRIES - 1),
            RETRY_ON_ASSET_OR_OP_FAILURE_TAG: "true",
        },
    )
