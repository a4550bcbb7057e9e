"""The engine `local`: Dagster's queue, whose run launcher starts each run on this machine."""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import dagster as dg

from tta_pipeline.defs import code_location
from tta_pipeline.defs.run_tags import AUTO_RETRY_RUN_ID, WILL_RETRY
from tta_pipeline.errors import SubmissionError
from tta_pipeline.extras.cluster.submission import Condition, State, Submission

if TYPE_CHECKING:
    from tta_pipeline.defs.private_dagster import InstigatorState

SENSOR = "submissions"
"""Name of the sensor that launches the pieces."""
SUBMISSION_TAG, PIECE_TAG = "tta/submission", "tta/piece"
_DAEMONS = ("SENSOR", "QUEUED_RUN_COORDINATOR")
_CANCEL_BATCH = 50
_ACTIVE_STATUSES = [
    each for each in dg.DagsterRunStatus if each not in (dg.DagsterRunStatus.SUCCESS, dg.DagsterRunStatus.CANCELED)
]
_CONDITIONS: Mapping[dg.DagsterRunStatus, Condition] = {
    dg.DagsterRunStatus.STARTED: "running",
    dg.DagsterRunStatus.CANCELING: "running",
    dg.DagsterRunStatus.SUCCESS: "done",
    dg.DagsterRunStatus.FAILURE: "failed",
    dg.DagsterRunStatus.CANCELED: "cancelled",
}


@dataclass(frozen=True, kw_only=True)
class QueuedRuns:
    """The engine `local`: the sensor `submissions` launches a run for each piece.

    An engine with another run launcher is a subclass that names it.
    """

    launcher: ClassVar[str] = "DefaultRunLauncher"
    """Class of the run launcher that `dagster.yaml` must name, or of one above it."""
    tell: Callable[[str], None]

    def require_ready(self) -> None:
        """Refuse to submit where the history is temporary or `dagster.yaml` names another run launcher."""
        from tta_pipeline.defs.private_dagster import CheckError

        with persistent_instance() as instance:
            try:
                launcher = instance.run_launcher
            except (dg.DagsterError, CheckError) as error:
                raise SubmissionError(
                    f"the run launcher of {instance.root_directory} cannot be loaded, {self.advice()}"
                ) from error
            self.require_launcher(launcher, instance.root_directory)

    def require_launcher(self, launcher: Any, home: str) -> None:
        """Refuse to submit if *launcher*, which `dagster.yaml` in the folder *home* names, is not that of the engine.

        Raises:
            SubmissionError: it is another one, or what it needs does not answer.
        """
        kinds = [kind.__name__ for kind in type(launcher).__mro__]
        if self.launcher not in kinds:
            raise SubmissionError(
                f"the run launcher of {home} is {kinds[0]}; expected {self.launcher}: see docs/how-to/machines.md, or "
                "choose another --engine"
            )

    def advice(self) -> str:
        """Return what was expected of a run launcher that cannot be loaded, and what to do."""
        return f"expected {self.launcher}: see docs/how-to/machines.md, or choose another --engine"

    def owner(self) -> str:
        """Return the ID of the history that holds the runs of the pieces; only its Dagster launches them."""
        with persistent_instance() as instance:
            return history_id(instance)

    def start(self, submission: Submission, *, num_devices: int) -> None:
        """Turn the sensor on at the first submission: it reads the file of each, and `dagster.yaml` limits its runs.

        A sensor that the user has turned off stays off.
        """
        del submission, num_devices
        with persistent_instance() as instance:
            _turn_on(instance)

    def states(self, submission: Submission) -> tuple[State, ...]:
        """Return the state of the newest run of each piece; a piece whose runs were deleted waits to be launched."""
        with persistent_instance() as instance:
            newest = newest_runs(instance, submission)
            retries = instance.run_retries_enabled
        not_launched: Condition = (
            "cancelled" if submission.is_cancelled else "lost" if submission.is_ended else "waiting"
        )
        return tuple(
            _state(newest[number], retries=retries) if number in newest else State(condition=not_launched)
            for number in range(len(submission.pieces))
        )

    def obstacles(self, submission: Submission) -> tuple[str, ...]:
        """Return why nothing starts: another Dagster owns the submission, no daemon runs, or the sensor is off."""
        with persistent_instance() as instance:
            if submission.owner != history_id(instance):
                return (_other_owner_message(submission),)
            found = _daemon_problem(instance), _sensor_problem(instance, submission)
        return tuple(filter(None, found))

    def cancel(self, submission: Submission) -> None:
        """Cancel the submission: remove its runs from the queue, and end the active ones."""
        submission.mark_cancelled()
        with persistent_instance() as instance:
            cancel_runs(instance, submission)
            if submission.owner != history_id(instance):
                self.tell(
                    f"its runs belong to another Dagster, with the history {submission.owner}: if that one still runs, "
                    "its sensor ends them at its next evaluation"
                )


def history_id(instance: dg.DagsterInstance) -> str:
    """Return a unique ID of the history of *instance*, different even from the ID of a copy of its folder."""
    from tta_pipeline.defs.private_dagster import SqlRunStorage

    storage = instance.run_storage
    if not isinstance(storage, SqlRunStorage):
        return type(storage).__name__
    storage.get_run_storage_id()  # two processes that create the ID at once each get their own; the first is stored
    with storage.connect() as connection:
        url = connection.engine.url
    # The URL of a server can differ between machines.
    is_file = url.get_backend_name() == "sqlite" and url.database
    return storage.get_run_storage_id() + (f" in {Path(url.database or '').resolve()}" if is_file else "")


def newest_runs(instance: dg.DagsterInstance, submission: Submission) -> Mapping[int, dg.DagsterRun]:
    """Return the newest run of each piece of *submission* by the piece's number, for the pieces that have runs."""
    newest: dict[int, dg.DagsterRun] = {}
    for run in instance.get_runs(filters=dg.RunsFilter(tags={SUBMISSION_TAG: submission.key})):  # newest first
        newest.setdefault(int(run.tags[PIECE_TAG]), run)
    return newest


def is_active(run: dg.DagsterRun, *, retries: bool) -> bool:
    """Return whether *run* waits, runs, or has failed and will be retried; *retries*: the instance allows that."""
    return not run.is_finished or (run.status is dg.DagsterRunStatus.FAILURE and _may_be_retried(run, retries=retries))


def has_ended(instance: dg.DagsterInstance, submission: Submission) -> bool:
    """Return whether no run of *submission* is under way."""
    return not _active_runs(instance, submission)


def cancel_runs(instance: dg.DagsterInstance, submission: Submission) -> None:
    """End the active runs of *submission*, remove waiting runs from the queue, and allow no retries."""
    asked = set[str]()
    while left := [run for run in _active_runs(instance, submission) if run.run_id not in asked]:
        # Active runs go first, and are looked up again after each batch: waiting runs may have begun meanwhile.
        left.sort(key=lambda run: run.status is dg.DagsterRunStatus.QUEUED)
        for run in left[:_CANCEL_BATCH]:
            asked.add(run.run_id)
            if run.status is dg.DagsterRunStatus.FAILURE:
                instance.add_run_tags(run.run_id, {WILL_RETRY: "false"})
            elif run.status is not dg.DagsterRunStatus.CANCELING:
                instance.run_coordinator.cancel_run(run.run_id)


def _active_runs(instance: dg.DagsterInstance, submission: Submission) -> list[dg.DagsterRun]:
    # One query: between two queries, a failed run could get its retry.
    found = dg.RunsFilter(tags={SUBMISSION_TAG: submission.key}, statuses=_ACTIVE_STATUSES)
    retries = instance.run_retries_enabled
    return [run for run in instance.get_runs(filters=found) if is_active(run, retries=retries)]


def _state(run: dg.DagsterRun, *, retries: bool) -> State:
    condition = _CONDITIONS.get(run.status, "waiting")
    if condition == "failed" and _may_be_retried(run, retries=retries):
        condition = "waiting"
    return State(condition=condition, log=f"run {run.run_id}")


def _may_be_retried(run: dg.DagsterRun, *, retries: bool) -> bool:
    """Return whether a failed run may still get a retry, for which no run exists yet.

    Dagster decides on the retry a moment after the failure, if the instance allows *retries*.
    """
    undecided = "true" if retries else "false"
    return run.tags.get(WILL_RETRY, undecided) == "true" and AUTO_RETRY_RUN_ID not in run.tags


def _other_owner_message(submission: Submission) -> str:
    name, number = submission.benchmark, submission.number
    return (
        f"submission {number} of {name} belongs to another Dagster, with the history {submission.owner}; no other "
        f"launches its pieces; if that one is gone: tta-pipeline submit {name} --cancel --number {number}, and "
        "submit again"
    )


def _daemon_problem(instance: dg.DagsterInstance) -> str:
    statuses = instance.get_daemon_statuses()
    if all(name in statuses and statuses[name].healthy for name in _DAEMONS):
        return ""
    return "no Dagster daemon runs here: nothing starts until `make ui` or `dagster-daemon run` does"


def _sensor_problem(instance: dg.DagsterInstance, submission: Submission) -> str:
    """Return a message if the sensor of the submission's code location is off; empty if it is on."""
    from tta_pipeline.defs.private_dagster import InstigatorStatus

    states = _sensor_states(instance, submission.claimed_by)
    if any(state.status is InstigatorStatus.RUNNING for state in states):
        return ""
    return (
        f"the sensor `{SENSOR}` is turned off: nothing more of submission {submission.number} starts until you turn it "
        f"on, in the web UI under Automation, or by `dagster sensor start {SENSOR} -w workspace.yaml`"
    )


def _sensor_states(instance: dg.DagsterInstance, location: str) -> "list[InstigatorState]":
    """Return what the history says of the sensor in the code location, or in any if *location* is empty."""
    from tta_pipeline.defs.private_dagster import InstigatorType

    return [
        state
        for state in instance.all_instigator_state(instigator_type=InstigatorType.SENSOR)
        if state.name == SENSOR and location in ("", state.repository_selector.location_name)
    ]


def _turn_on(instance: dg.DagsterInstance) -> None:
    """Tell the history that the sensor is on, as `dagster sensor start` does, unless it knows that it is on or off."""
    from tta_pipeline.defs import private_dagster as private

    if _sensor_states(instance, code_location.NAME):
        return
    sensor = code_location.repository_origin().get_instigator_origin(SENSOR)
    state = private.InstigatorState(sensor, private.InstigatorType.SENSOR, private.InstigatorStatus.RUNNING)
    with suppress(dg.DagsterInvariantViolationError):  # another submission has just done so
        instance.add_instigator_state(state)


@contextmanager
def persistent_instance() -> Iterator[dg.DagsterInstance]:
    """Yield the persistent instance whose runs the web UI shows, as configured in `dagster.yaml`.

    Raises:
        SubmissionError: no persistent instance is configured.
    """
    from tta_pipeline.defs.private_dagster import get_possibly_temporary_instance_for_cli

    if not os.environ.get("DAGSTER_HOME") and not Path("dagster.yaml").exists():
        raise SubmissionError(
            f"found neither DAGSTER_HOME nor {Path('dagster.yaml').absolute()}; expected one of them: work in the "
            "project folder, or set DAGSTER_HOME"
        )
    with get_possibly_temporary_instance_for_cli("tta-pipeline submit") as instance:
        yield instance
