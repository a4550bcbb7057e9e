"""The sensor that launches submissions, over real files and a real history."""

import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import dagster as dg
import pytest
from dagster._core.remote_origin import RegisteredCodeLocationOrigin, RemoteRepositoryOrigin
from dagster._core.storage.dagster_run import DagsterRun, DagsterRunStatus, RunsFilter
from dagster._core.storage.tags import AUTO_RETRY_RUN_ID_TAG, RUN_KEY_TAG, WILL_RETRY_TAG

from tta_pipeline.definitions import build_definitions
from tta_pipeline.defs.resources import ShardStore
from tta_pipeline.defs.resources.queued_runs import PIECE_TAG, SUBMISSION_TAG, QueuedRuns
from tta_pipeline.domain.locations import Locations
from tta_pipeline.evaluation.work.pieces import Piece
from tta_pipeline.extras.cluster.submission import Submission
from tta_pipeline_tests.conftest import SMALL, Project, new_project

SHARDS = Piece(stage="shards", assets=("tar_shards", "shard_manifest"), keys=("contrast|3", "contrast|5"))
SOURCE = Piece(stage="evaluations", assets=("evaluation/source",), keys=("contrast|3",))
TENT = Piece(stage="evaluations", assets=("evaluation/tent",), keys=("contrast|3",))
REPORT = Piece(stage="report", assets=("robustness_report",))
_ORIGIN = RemoteRepositoryOrigin(
    code_location_origin=RegisteredCodeLocationOrigin("tta_pipeline.definitions"), repository_name="__repository__"
).get_job_origin("__ASSET_JOB")


@dataclass(kw_only=True)
class Daemon:
    """What the daemon does with the sensor of a code location: it makes runs of requests with a new key."""

    project: Project
    instance: dg.DagsterInstance
    location: str = "tta_pipeline.definitions"
    runs: dict[str, DagsterRun] = field(default_factory=dict)

    def look(self) -> list[str]:
        """Evaluate the sensor once, and return the numbers of the pieces of the runs that are new."""
        locations = self.project.locations
        repository = _repository((locations.benchmark_files / "small.yaml").read_text())
        store = ShardStore(data_root=str(locations.root))
        context = dg.build_sensor_context(instance=self.instance, repository_def=repository, resources={"store": store})
        context._code_location_origin = RegisteredCodeLocationOrigin(self.location)
        data = repository.get_sensor_def("submissions").evaluate_tick(context)
        return [request.tags[PIECE_TAG] for request in data.run_requests or () if self._is_new(request)]

    def delete(self, number: int) -> None:
        """Delete the newest run of a piece, as the user does in the web UI."""
        self.instance.delete_run(self._run(number).run_id)

    def end(self, number: int, status: DagsterRunStatus, **tags: str) -> None:
        """Let the newest run of a piece end."""
        run = self._run(number)
        self.instance.run_storage.handle_run_event(run.run_id, _event(run, status), None)
        self.instance.add_run_tags(run.run_id, tags)

    def _run(self, number: int) -> DagsterRun:
        return next(run for key, run in self.runs.items() if key.endswith(f"/{number}"))

    def _is_new(self, request: dg.RunRequest) -> bool:
        assert request.run_key is not None
        key = {RUN_KEY_TAG: request.run_key, "dagster/code_location": self.location}
        if self.instance.get_runs(filters=RunsFilter(tags=key)):
            return False
        run = DagsterRun(job_name="__ASSET_JOB", tags={**request.tags, **key}, status=DagsterRunStatus.QUEUED,
                         remote_job_origin=_ORIGIN)  # fmt: skip
        self.runs[request.run_key] = self.instance.add_run(run)
        return True


@cache
def _repository(text: str) -> dg.RepositoryDefinition:
    """Return what Dagster loads where the benchmark file has *text*; only its resources know the data root."""
    with TemporaryDirectory() as folder:
        locations = Locations(root=Path(folder))
        locations.benchmark_files.mkdir()
        (locations.benchmark_files / "small.yaml").write_text(text)
        return build_definitions(locations).get_repository_def()


def _event(run: DagsterRun, status: DagsterRunStatus) -> dg.DagsterEvent:
    kinds = {
        DagsterRunStatus.STARTED: dg.DagsterEventType.RUN_START,
        DagsterRunStatus.SUCCESS: dg.DagsterEventType.RUN_SUCCESS,
        DagsterRunStatus.FAILURE: dg.DagsterEventType.RUN_FAILURE,
    }
    return dg.DagsterEvent(event_type_value=kinds[status].value, job_name=run.job_name)


@pytest.fixture
def daemon(project: Project, monkeypatch: pytest.MonkeyPatch) -> Iterator[Daemon]:
    """A daemon that has not looked yet, and a queue from which nothing is taken."""
    project.add_benchmark("small", SMALL)
    monkeypatch.setenv("DAGSTER_HOME", str(project.home))
    with (project.home / "dagster.yaml").open("a") as file:
        file.write("run_retries: {enabled: true}\n")
    with dg.DagsterInstance.from_config(str(project.home)) as instance:
        yield Daemon(project=project, instance=instance)


def submit(project: Project, pieces: Sequence[Piece]) -> Submission:
    """Submit pieces to the queue."""
    owner = QueuedRuns(tell=lambda _: None).owner()
    return Submission.create(
        project.locations, benchmark="small", engine="local", pieces=pieces, compute={}, owner=owner
    )


def conditions(submission: Submission) -> list[str]:
    """Return what the engine says of each piece."""
    engine = QueuedRuns(tell=lambda _: None)
    return [state.condition for state in engine.states(submission)]


def test_a_stage_begins_when_the_one_before_has_ended(daemon: Daemon):
    """Also with failures; and no piece is launched twice."""
    submit(daemon.project, [SHARDS, SOURCE, TENT, REPORT])

    launched = [daemon.look(), daemon.look()]
    daemon.end(0, DagsterRunStatus.SUCCESS)
    launched += [daemon.look(), daemon.look()]
    daemon.end(1, DagsterRunStatus.SUCCESS)
    launched += [daemon.look()]
    daemon.end(2, DagsterRunStatus.FAILURE, **{WILL_RETRY_TAG: "false"})
    launched += [daemon.look(), daemon.look()]

    assert [["0"], [], ["1", "2"], [], [], ["3"], []] == launched


@pytest.mark.parametrize(
    ("tags", "condition"),
    [
        ({}, "waiting"),
        ({WILL_RETRY_TAG: "true"}, "waiting"),
        ({WILL_RETRY_TAG: "true", AUTO_RETRY_RUN_ID_TAG: "another"}, "failed"),
        ({WILL_RETRY_TAG: "false"}, "failed"),
    ],
    ids=["undecided", "to be tried again", "tried again", "given up"],
)
def test_a_failed_piece_waits_until_dagster_has_decided_on_another_try(
    daemon: Daemon, tags: dict[str, str], condition: str
):
    """The tag that says so comes a moment after the failure."""
    submission = submit(daemon.project, [SHARDS, SOURCE])
    daemon.look()

    daemon.end(0, DagsterRunStatus.FAILURE, **tags)

    assert [condition, "waiting"] == conditions(submission)
    assert (["1"] if condition == "failed" else []) == daemon.look()


def test_a_piece_whose_run_was_deleted_is_launched_again(daemon: Daemon):
    """The report does not begin without it."""
    submission = submit(daemon.project, [SOURCE, TENT, REPORT])
    daemon.look()
    daemon.end(0, DagsterRunStatus.SUCCESS)
    daemon.delete(1)

    assert ["done", "waiting", "waiting"] == conditions(submission)
    assert ["1"] == daemon.look()
    daemon.end(1, DagsterRunStatus.SUCCESS)
    assert ["2"] == daemon.look()


def test_a_deleted_run_of_an_earlier_stage_holds_up_the_next(daemon: Daemon):
    """Of three stages, the last begins when the first has been done again."""
    submit(daemon.project, [SHARDS, SOURCE, REPORT])
    daemon.look()
    daemon.end(0, DagsterRunStatus.SUCCESS)
    daemon.look()
    daemon.delete(0)
    daemon.end(1, DagsterRunStatus.SUCCESS)

    assert [["0"], []] == [daemon.look(), daemon.look()]
    daemon.end(0, DagsterRunStatus.SUCCESS)
    assert ["2"] == daemon.look()


def test_what_was_over_is_not_launched_again_when_its_runs_are_deleted(daemon: Daemon):
    """Who tidies up the list of runs starts nothing, and nobody waits for it."""
    submission = submit(daemon.project, [SOURCE, REPORT])
    for number in (0, 1):
        daemon.look()
        daemon.end(number, DagsterRunStatus.SUCCESS)
    daemon.look()
    for number in (0, 1):
        daemon.delete(number)

    assert [] == daemon.look()
    assert ["lost", "lost"] == conditions(submission)


@pytest.mark.parametrize("is_copy", [False, True], ids=["another history", "a copy of its folder"])
def test_no_other_dagster_launches_what_was_submitted_here(daemon: Daemon, tmp_path: Path, *, is_copy: bool):
    """Two that work on one data root would do everything twice."""
    submit(daemon.project, [SOURCE])
    home = tmp_path / "other" / "dagster"
    if is_copy:
        shutil.copytree(daemon.project.home, home)
    else:
        new_project(home.parent)
    with dg.DagsterInstance.from_config(str(home)) as instance:
        other = Daemon(project=daemon.project, instance=instance)

        assert [[], ["0"], []] == [other.look(), daemon.look(), other.look()]


def test_what_is_with_another_dagster_can_be_cancelled_and_submitted_here(
    daemon: Daemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Its own Dagster, if it still works, ends its runs and forgets it; nobody else does."""
    abandoned = submit(daemon.project, [SOURCE])
    daemon.look()
    home = new_project(tmp_path / "other").home
    monkeypatch.setenv("DAGSTER_HOME", str(home))
    engine = QueuedRuns(tell=lambda _: None)
    assert "belongs to another Dagster" in engine.obstacles(abandoned)[0]
    engine.cancel(abandoned)
    with dg.DagsterInstance.from_config(str(home)) as instance:
        other = Daemon(project=daemon.project, instance=instance)
        submit(daemon.project, [SOURCE])

        assert ["0"] == other.look()
        assert not abandoned.is_ended
    assert [] == daemon.look()
    assert abandoned.is_ended


def test_of_two_code_locations_of_one_history_one_has_the_submission(daemon: Daemon):
    """Each machine that shares the history has a sensor, and all read the same data root."""
    submit(daemon.project, [SOURCE, TENT, REPORT])
    other = Daemon(project=daemon.project, instance=daemon.instance, location="node2")

    assert [["0", "1"], [], []] == [daemon.look(), other.look(), daemon.look()]
    for number in (0, 1):
        daemon.end(number, DagsterRunStatus.SUCCESS)
    assert [[], ["2"]] == [other.look(), daemon.look()]


def test_a_damaged_submission_holds_up_no_other(daemon: Daemon):
    """It is named in the log of the sensor; the one after it is launched."""
    for damage in (b"[", b"3", b'{"pieces": []}', b"\xff"):
        path = submit(daemon.project, [SHARDS]).folder / "submission.json"
        path.write_bytes(damage)
    (submit(daemon.project, [SHARDS]).folder / "claimed.json").write_bytes(b"[")
    submit(daemon.project, [SOURCE])

    assert ["0"] == daemon.look()


def test_a_submission_that_names_what_the_benchmark_no_longer_has_ends(daemon: Daemon):
    """Its runs that wait are ended, too, the user may submit again, and other submissions go on."""
    outdated = submit(daemon.project, [SOURCE, TENT])
    daemon.look()
    daemon.project.add_benchmark("small", SMALL.replace("tent:", "renamed:"))
    submit(daemon.project, [SHARDS])

    assert ["0"] == daemon.look()
    assert [] == daemon.look()
    assert ["cancelled", "cancelled"] == conditions(outdated)


def test_what_begins_while_the_user_cancels_is_ended(daemon: Daemon):
    """A run of the evaluation that was under way, and another try of a piece that had failed."""
    submission = submit(daemon.project, [SHARDS, SHARDS])
    daemon.look()
    daemon.end(1, DagsterRunStatus.FAILURE, **{WILL_RETRY_TAG: "true"})
    submission.mark_cancelled()

    assert [] == daemon.look()

    assert ["cancelled", "failed"] == conditions(submission)


def test_the_submissions_of_two_data_roots_with_one_history_are_told_apart(daemon: Daemon, tmp_path: Path):
    """They have the same number; each data root's pieces are launched once, whoever looks in between."""
    other = Project(locations=Locations(root=tmp_path / "other"), home=daemon.project.home)
    other.add_benchmark("small", SMALL)
    first, second = submit(daemon.project, [SHARDS]), submit(other, [SHARDS])
    assert first.number == second.number

    here, daemon.project = daemon.project, other
    launched = [daemon.look()]
    daemon.project = here
    launched += [daemon.look()]
    daemon.project = other
    launched += [daemon.look()]

    assert [["0"], ["0"], []] == launched
    with daemon.instance as instance:
        assert {first.key, second.key} == {run.tags[SUBMISSION_TAG] for run in instance.get_runs()}
