"""Runs in Dagster's queue as an engine for submissions: on this machine, or on Ray where `dagster.yaml` says so."""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import dagster as dg
from dagster._cli.utils import get_possibly_temporary_instance_for_cli
from dagster._core.storage.dagster_run import NOT_FINISHED_STATUSES, DagsterRun, DagsterRunStatus, RunsFilter
from dagster._core.storage.tags import AUTO_RETRY_RUN_ID_TAG, WILL_RETRY_TAG

from tta_pipeline.cluster.submission import Condition, State, Submission
from tta_pipeline.errors import SubmissionError

SUBMISSION_TAG, PIECE_TAG = "tta/submission", "tta/piece"
ENGINES = {"local": "DefaultRunLauncher", "ray": "RayRunLauncher"}
"""Engines by name, each with the run launcher that `dagster.yaml` must name."""
_DAEMONS = ("SENSOR", "QUEUED_RUN_COORDINATOR")
_CONDITIONS: Mapping[DagsterRunStatus, Condition] = {
    DagsterRunStatus.STARTED: "running",
    DagsterRunStatus.CANCELING: "running",
    DagsterRunStatus.SUCCESS: "done",
    DagsterRunStatus.FAILURE: "failed",
    DagsterRunStatus.CANCELED: "cancelled",
}


@dataclass(frozen=True, kw_only=True)
class QueuedRuns:
    """The engines `local` and `ray`: the sensor `submissions` launches a run for each piece."""

    engine: str
    tell: Callable[[str], None]

    def require_ready(self) -> None:
        """Refuse to submit where the history is temporary or `dagster.yaml` names another run launcher."""
        with lasting_instance() as instance:
            kinds = [kind.__name__ for kind in type(instance.run_launcher).__mro__]
            if ENGINES[self.engine] not in kinds:
                raise SubmissionError(
                    f"the run launcher of {instance.root_directory} is {kinds[0]}; expected {ENGINES[self.engine]} for "
                    f"the engine {self.engine}: see docs/how-to.md, or choose another --engine"
                )
            statuses = instance.get_daemon_statuses()
            if not all(name in statuses and statuses[name].healthy for name in _DAEMONS):
                self.tell("no Dagster daemon runs here: nothing starts until `make ui` or `dagster-daemon run` does")

    def start(self, submission: Submission) -> None:
        """Leave it to the sensor, which reads the file of the submission."""
        del submission

    def states(self, submission: Submission) -> tuple[State, ...]:
        """Return what the newest run of each piece is doing."""
        with lasting_instance() as instance:
            runs = instance.get_runs(filters=RunsFilter(tags={SUBMISSION_TAG: submission.key}))
        newest: dict[int, DagsterRun] = {}
        for run in runs:  # the newest come first
            newest.setdefault(int(run.tags[PIECE_TAG]), run)
        not_launched: Condition = "cancelled" if submission.is_cancelled else "waiting"
        return tuple(
            _state(newest[number]) if number in newest else State(condition=not_launched)
            for number in range(len(submission.pieces))
        )

    def cancel(self, submission: Submission) -> None:
        """Remove its runs from the queue, and end those that run."""
        submission.note_cancelled()
        with lasting_instance() as instance:
            for run in _unfinished(instance, submission):
                instance.run_coordinator.cancel_run(run.run_id)


def is_under_way(instance: dg.DagsterInstance, submission: Submission) -> bool:
    """Return whether a run of *submission* waits, runs, or will be tried again."""
    if _unfinished(instance, submission):
        return True
    failed = RunsFilter(
        tags={SUBMISSION_TAG: submission.key, WILL_RETRY_TAG: "true"}, statuses=[DagsterRunStatus.FAILURE]
    )
    return any(map(_will_be_tried_again, instance.get_runs(filters=failed)))


def _unfinished(instance: dg.DagsterInstance, submission: Submission) -> list[DagsterRun]:
    found = RunsFilter(tags={SUBMISSION_TAG: submission.key}, statuses=NOT_FINISHED_STATUSES)
    return list(instance.get_runs(filters=found))


def _state(run: DagsterRun) -> State:
    condition = _CONDITIONS.get(run.status, "waiting")
    if condition == "failed" and _will_be_tried_again(run):
        condition = "waiting"
    return State(condition=condition, log=f"run {run.run_id}")


def _will_be_tried_again(run: DagsterRun) -> bool:
    """Return whether the daemon has announced another try, and has not made a run of it yet."""
    return run.tags.get(WILL_RETRY_TAG) == "true" and AUTO_RETRY_RUN_ID_TAG not in run.tags


@contextmanager
def lasting_instance() -> Iterator[dg.DagsterInstance]:
    """Yield the history of runs that the web UI shows, as `dagster.yaml` says.

    Raises:
        SubmissionError: there is none that lasts.
    """
    if not os.environ.get("DAGSTER_HOME") and not Path("dagster.yaml").exists():
        raise SubmissionError(
            f"found neither DAGSTER_HOME nor {Path('dagster.yaml').absolute()}; expected one of them: work in the "
            "project folder, or set DAGSTER_HOME"
        )
    with get_possibly_temporary_instance_for_cli("tta-pipeline submit") as instance:
        yield instance
