"""The engine `local` on a real `dg dev`: its daemon, its queue and the runs it starts on this machine."""

import time
from collections.abc import Iterator
from dataclasses import replace

import pytest
from dagster._core.storage.dagster_run import DagsterRunStatus, RunRecord

from tta_pipeline.defs.resources.queued_runs import PIECE_TAG, SUBMISSION_TAG
from tta_pipeline.domain.locations import Locations
from tta_pipeline_tests.extras.cluster.submitting import (
    EXPERIMENTS,
    FEW,
    ROOT,
    SubmittingProject,
    first_records,
    only,
    piece_of,
    wait_until,
)
from tta_pipeline_tests.web.server import WebServer, web_server

pytestmark = pytest.mark.cluster
_STAGES = {"source_split": 0, "tar_shards": 0, "source_model": 1, "evaluation": 2, "robustness_report": 3}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WebServer]:
    """The small benchmark, submitted before the daemon began, with an experiment that fails."""
    folder = tmp_path_factory.mktemp("local")
    project = SubmittingProject(engine="local", locations=Locations(root=folder / "data"), home=folder / "dagster")
    project.configure(ROOT / "dagster.yaml")
    project.add_benchmark("few", FEW)
    project.submit_work((*EXPERIMENTS, "failing"))
    with web_server(another(project), folder / "another.log"), web_server(project, folder / "server.log") as server:
        project.wait()
        yield server


def another(project: SubmittingProject) -> SubmittingProject:
    """Another Dagster on the same data root, with a history of its own."""
    beside = replace(project, home=project.home.with_name("another"))
    if not beside.home.exists():
        beside.configure(ROOT / "dagster.yaml")
    return beside


@pytest.fixture
def project(served: WebServer) -> SubmittingProject:
    """The project that is served."""
    assert isinstance(served.project, SubmittingProject)
    return served.project


def stage(record: RunRecord) -> int:
    """Return the position of the stage of a run: shards, training, evaluations, report."""
    names = {name for key in record.dagster_run.asset_selection or () for name in key.path}
    return max(place for name, place in _STAGES.items() if name in names)


def test_stages_follow_one_another(project: SubmittingProject):
    """No run of a stage begins before all of the stage before have ended, tries that failed included."""
    spans: dict[int, list[tuple[float, float]]] = {}
    for record in project.runs():
        assert record.start_time is not None
        assert record.end_time is not None
        spans.setdefault(stage(record), []).append((record.start_time, record.end_time))

    assert [0, 1, 2, 3] == sorted(spans)
    for before, after in zip(range(3), range(1, 4), strict=True):
        assert max(end for _, end in spans[before]) <= min(start for start, _ in spans[after])


def test_every_cell_is_evaluated_once(project: SubmittingProject):
    """And the report and the database have them, though no run published but the last."""
    for name in EXPERIMENTS:
        assert first_records() == sorted(project.records(name))
    assert (project.locations.report("few") / "index.html").exists()
    counted = project.run("tta-pipeline", "query", "--format", "csv",
                          "SELECT count(*) AS n FROM evaluations WHERE corruption <> 'clean'")  # fmt: skip
    assert ["n", "12"] == counted.stdout.split(), counted.stderr


def test_another_dagster_on_the_data_root_launches_nothing(project: SubmittingProject):
    """Its sensor looks at the same submissions."""
    assert [] == another(project).runs()


def test_a_piece_that_fails_is_tried_twice_and_named_with_its_run(project: SubmittingProject):
    """The status is 1, and each line ends with the run whose log says why."""
    tries: dict[str, list[RunRecord]] = {}
    for record in project.runs_of("failing"):
        tries.setdefault(piece_of(record), []).append(record)
    told = project.submit("--status")

    assert 1 == told.returncode
    assert tries
    for first, second in tries.values():
        assert [DagsterRunStatus.FAILURE] * 2 == [each.dagster_run.status for each in (first, second)]
        assert f"failed; log: run {second.dagster_run.run_id}" in told.stderr


def test_a_second_submission_has_only_what_failed(project: SubmittingProject):
    """Of the others, nothing is unfinished."""
    nothing = project.submit("--device", "cpu", *only(EXPERIMENTS))
    planned = project.submit("--device", "cpu", *only(("source", "failing")), "--dry-run")

    assert "nothing of few is unfinished" in nothing.stderr
    assert ["stage", "evaluations", "report"] == [line.split()[0] for line in planned.stdout.splitlines()]


def test_a_piece_whose_run_is_deleted_is_launched_again_before_the_report(project: SubmittingProject):
    """And evaluates nothing that is finished."""
    project.submit_work(["slow"])
    wait_until(lambda: ended(project, "slow"), what="a piece that is done", within_s=300)
    deleted = ended(project, "slow")[0].dagster_run
    gone = project.run("dagster", "run", "delete", "--force", deleted.run_id)
    assert 0 == gone.returncode, gone.stderr
    project.wait()

    again = [each for each in ended(project, "slow") if each.dagster_run.tags[PIECE_TAG] == deleted.tags[PIECE_TAG]]
    (report,) = [each for each in project.runs() if stage(each) == 3 and each.dagster_run.tags[SUBMISSION_TAG] ==
                 deleted.tags[SUBMISSION_TAG]]  # fmt: skip
    assert 1 == len(again)
    assert report.start_time is not None
    assert again[0].end_time is not None
    assert again[0].end_time <= report.start_time
    assert first_records() == sorted(project.records("slow"))


def ended(project: SubmittingProject, experiment: str) -> list[RunRecord]:
    """Return the runs of an experiment that ended well."""
    return [each for each in project.runs_of(experiment) if each.dagster_run.status is DagsterRunStatus.SUCCESS]


def test_cancel_ends_what_runs_and_what_waits(project: SubmittingProject):
    """Within ten seconds, from another process; no run begins afterwards."""
    began = time.time()
    workers = project.begin_endless()
    ended_s = project.cancel(workers)

    assert ended_s < 10
    project.wait()
    assert {DagsterRunStatus.CANCELED} == {each.dagster_run.status for each in project.runs_of("endless")}
    assert workers == project.process_ids(since=began)
