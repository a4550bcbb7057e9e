"""The verb `submit` where nothing runs yet: what it writes, and which submission it asks for."""

import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from shutil import rmtree

import dagster as dg
import pytest
import yaml
from dagster._core.remote_origin import RegisteredCodeLocationOrigin, RemoteRepositoryOrigin
from dagster._core.scheduler.instigation import InstigatorState, InstigatorStatus, InstigatorType

from tta_pipeline.defs.resources.queued_runs import SENSOR
from tta_pipeline.domain.locations import Locations
from tta_pipeline.errors import SubmissionError
from tta_pipeline.evaluation.work.pieces import Piece
from tta_pipeline.extras.cluster.submission import Submission, find_open_submissions, find_submission
from tta_pipeline_tests.conftest import SMALL, Project, copy_benchmark, new_project
from tta_pipeline_tests.extras.cluster.submitting import FEW, ROOT, SubmittingProject
from tta_pipeline_tests.result_paths import remove_results


def with_history(folder: Path) -> SubmittingProject:
    """Return the small benchmark and an empty history in *folder*."""
    project = SubmittingProject(engine="local", locations=Locations(root=folder / "data"), home=folder / "dagster")
    project.configure(ROOT / "dagster.yaml")
    project.add_benchmark("few", FEW)
    assert [] == project.runs()  # Dagster makes the history at its first use, and not twice at once
    return project


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty history."""
    return with_history(tmp_path_factory.mktemp("history")).home / ".dagster"


@pytest.fixture
def project(history: Path, tmp_path: Path) -> SubmittingProject:
    """The small benchmark, and a history that no daemon reads."""
    shutil.copytree(history, tmp_path / "dagster" / ".dagster")
    return with_history(tmp_path)


def submissions(locations: Locations) -> list[Submission]:
    """Return all submissions, in their order."""
    return [find_submission(locations, "few", int(path.parent.name)) for path in
            sorted(locations.submissions("few").glob("*/submission.json"))]  # fmt: skip


def test_of_two_that_submit_at_once_one_finds_nothing_to_submit(project: SubmittingProject):
    """The same work is never submitted twice; of two submissions, the older one is cancelled by its number."""
    with ThreadPoolExecutor(2) as threads:
        told = [each.result() for each in [
            threads.submit(project.submit, "--experiment", "source", "--device", "cpu") for _ in range(2)
        ]]  # fmt: skip

    assert [0, 0] == [each.returncode for each in told], [each.stderr for each in told]
    assert 1 == len(submissions(project.locations))
    assert 1 == sum("run or wait already" in each.stderr for each in told)

    first = find_submission(project.locations, "few")
    Submission.create(project.locations, benchmark="few", engine="local", pieces=first.pieces, compute=first.compute,
                      owner=first.owner)  # fmt: skip
    cancelled = project.submit("--cancel", "--number", "1")

    assert "cancelled: submission 1 of few" in cancelled.stderr
    assert [True, False] == [each.is_cancelled for each in submissions(project.locations)]


def type_switch(project: SubmittingProject, *, on: bool) -> None:
    """Turn the sensor on or off by Dagster's command."""
    switched = project.run("dagster", "sensor", "start" if on else "stop", SENSOR, "-w", "workspace.yaml")
    assert 0 == switched.returncode, switched.stderr[-3000:]


def note_switch(project: SubmittingProject, *, on: bool) -> None:
    """Put into the history what Dagster's command puts there."""
    status = InstigatorStatus.RUNNING if on else InstigatorStatus.STOPPED
    code = RegisteredCodeLocationOrigin("tta_pipeline.definitions")
    sensor = RemoteRepositoryOrigin(code, "__repository__").get_instigator_origin(SENSOR)
    state = InstigatorState(sensor, InstigatorType.SENSOR, status)
    with project.instance() as instance:
        instance.update_instigator_state(state)


@pytest.mark.parametrize("switch", [note_switch, pytest.param(type_switch, marks=pytest.mark.slow)])
def test_what_holds_up_a_submission_is_named(project: SubmittingProject, tmp_path: Path, switch: Callable[..., None]):
    """A sensor that is off, and another Dagster, when the user submits, asks, or submits again; with what to do."""
    project.submit("--experiment", "source", "--device", "cpu")
    with project.instance() as instance:
        (state,) = instance.all_instigator_state()
    assert InstigatorStatus.RUNNING is state.status

    for is_off in (True, False):
        switch(project, on=not is_off)
        told = [project.submit("--experiment", "source", "--device", "cpu"), project.submit("--status")]

        named = ["turned off: nothing more of submission 1 starts until you turn it on" in each.stderr for each in told]
        assert [is_off] * 2 == named, [each.stderr for each in told]
    assert 1 == len(submissions(project.locations))

    here = replace(project, home=tmp_path / "another")
    here.configure(ROOT / "dagster.yaml")
    told = [here.submit("--experiment", "source", "--device", "cpu"), here.submit("--status")]
    cancelled = here.submit("--cancel")
    again = here.submit("--experiment", "source", "--device", "cpu")

    for each in told:
        assert "submission 1 of few belongs to another Dagster" in each.stderr, each.stderr
        assert "tta-pipeline submit few --cancel --number 1" in each.stderr, each.stderr
    assert "its runs belong to another Dagster" in cancelled.stderr, cancelled.stderr
    assert "as submission 2 of few" in again.stderr, again.stderr
    with here.instance() as instance:
        assert [InstigatorStatus.RUNNING] == [each.status for each in instance.all_instigator_state()]


def test_what_a_piece_that_was_cut_off_has_finished_is_told(sweep: Project, tmp_path: Path):
    """A cell to Dagster's history, and a piece of which nothing is left to the user, as done; and no other cell."""
    project = new_project(tmp_path)
    copy_benchmark(sweep, project, without=["source"])
    remove_results(project.locations.root, "small", "tent", "contrast-5")
    change_settings(project, "norm")
    cut_off = [Piece(stage="evaluations", assets=(f"evaluation/{name}",), keys=("contrast|3", "contrast|5"))
               for name in ("tent", "source", "norm")]  # fmt: skip
    submission = Submission.create(project.locations, benchmark="small", engine="local", pieces=cut_off, compute={})
    submission.mark_cancelled()

    status = project.run("tta-pipeline", "submit", "small", "--status")

    assert "1 of 3 pieces done: 1 done, 2 cancelled" in status.stderr, status.stderr
    with dg.DagsterInstance.from_config(str(project.home)) as instance:
        known = {name: instance.get_materialized_partitions(dg.AssetKey(["small", "evaluation", name]))
                 for name in ("tent", "source", "norm")}  # fmt: skip
    assert {"tent": {"contrast|3"}, "source": {"contrast|3", "contrast|5"}, "norm": set()} == known


def change_settings(project: Project, experiment: str) -> None:
    """Let an experiment ask for something that was never evaluated."""
    content = yaml.safe_load(SMALL)
    content["experiments"][experiment]["batch_size"] = 7
    project.add_benchmark("small", yaml.safe_dump(content, sort_keys=False))


def test_another_engine_is_not_asked_for_a_submission(project: SubmittingProject):
    """Slurm would say that all its pieces are lost."""
    Submission.create(project.locations, benchmark="few", engine="local", pieces=(), compute={})
    told = project.submit("--status", "--engine", "slurm")

    assert 2 == told.returncode
    assert "submission 1 of few is with local, not with slurm" in told.stderr


def test_a_number_that_no_submission_has_is_refused(tmp_path: Path):
    """With those that there are."""
    locations = Locations(root=tmp_path)
    Submission.create(locations, benchmark="few", engine="local", pieces=(), compute={})

    with pytest.raises(SubmissionError, match=r" 2 .*\bfew\b.* 1\b"):
        find_submission(locations, "few", 2)


def test_the_marks_of_a_removed_submission_are_not_those_of_the_next(tmp_path: Path):
    """Who still watches it notes its end, before and after its number is given again."""
    locations = Locations(root=tmp_path)

    def create() -> Submission:
        return Submission.create(locations, benchmark="few", engine="local", pieces=(), compute={})

    removed = create()
    rmtree(removed.folder)
    removed.mark_ended()
    following = create()
    removed.mark_cancelled()
    removed.mark_ended()

    assert [following] == list(find_open_submissions(locations, "few"))
    assert not following.is_cancelled


def test_a_folder_that_has_lost_its_file_is_not_taken_again(tmp_path: Path):
    """Its mark would end the next submission before it begins."""
    locations = Locations(root=tmp_path)
    first = Submission.create(locations, benchmark="few", engine="local", pieces=(), compute={})
    first.mark_ended()
    (first.folder / "submission.json").unlink()

    following = Submission.create(locations, benchmark="few", engine="local", pieces=(), compute={})

    assert [following] == list(find_open_submissions(locations, "few"))


@pytest.mark.parametrize(
    ("options", "status"),
    [(("--number", "3"), 2), (("--cancel", "--dry-run"), 2), (("--experiment", "source", "--experiment", ""), 1)],
)
def test_options_that_contradict_each_other_do_nothing(
    project: SubmittingProject, options: tuple[str, ...], status: int
):
    """Neither is anything submitted nor cancelled."""
    told = project.submit(*options)

    assert status == told.returncode, told.stderr
    assert [] == submissions(project.locations)
