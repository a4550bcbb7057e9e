"""The engine `ray` on a real cluster of this machine: a head, two devices that are none, and the daemon of `dg dev`."""

import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from dagster._core.storage.dagster_run import DagsterRunStatus

from tta_pipeline.domain.locations import Locations
from tta_pipeline_tests.conftest import new_project
from tta_pipeline_tests.extras.cluster.noting import Note
from tta_pipeline_tests.extras.cluster.ray_head import RayHead, why_not
from tta_pipeline_tests.extras.cluster.submitting import (
    CELLS,
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

pytestmark = [pytest.mark.cluster, pytest.mark.skipif(bool(why_not()), reason=why_not())]
_STATS = (
    "query ($key: AssetKeyInput!) { assetNodeOrError(assetKey: $key) { ... on AssetNode { partitionStats { %s } } } }"
)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WebServer]:
    """The small benchmark, two experiments of which were evaluated on Ray."""
    folder = tmp_path_factory.mktemp("ray")
    project = SubmittingProject(engine="ray", locations=Locations(root=folder / "data"), home=folder / "dagster")
    with RayHead(project.environment, folder / "ray.log") as head:
        project.more["RAY_ADDRESS"] = head.address
        project.configure(ROOT / "cluster" / "ray" / "dagster.yaml")
        project.add_benchmark("few", FEW)
        with web_server(project, folder / "server.log") as server:
            project.submit_work(EXPERIMENTS)
            project.wait()
            yield server
    assert [] == head.process_ids()


@pytest.fixture
def project(served: WebServer) -> SubmittingProject:
    """The project that is served."""
    assert isinstance(served.project, SubmittingProject)
    return served.project


def most_at_once(notes: list[Note]) -> int:
    """Return how many processes predicted at the same time."""
    return max(
        len({each.process_id for each in notes if each.began_at <= note.began_at < each.ended_at}) for note in notes
    )


def test_predictions_are_those_of_a_run_on_this_machine(project: SubmittingProject, tmp_path: Path):
    """Six cells of two experiments, each evaluated once."""
    local = new_project(tmp_path)
    local.add_benchmark("few", FEW)
    here = SubmittingProject(engine="local", locations=local.locations, home=local.home)
    finished = here.materialize("+group:few", "--partition-range", "gaussian_noise|3...contrast|5")
    expected = {name: here.records(name) for name in EXPERIMENTS}

    assert 0 == finished.returncode, finished.stderr[-3000:]
    assert first_records() == sorted(expected["source"])
    assert expected == {name: project.records(name) for name in EXPERIMENTS}


def test_no_device_has_two_pieces_at_a_time(project: SubmittingProject):
    """Dagster gives Ray more runs than it has devices; Ray gives each process one of them, by its number."""
    notes = project.notes()
    of_devices = {each.devices: [note for note in notes if note.devices == each.devices] for each in notes}

    assert of_devices.keys() <= {"0", "1"}
    assert {1} == {most_at_once(noted) for noted in of_devices.values()}


def test_the_web_ui_shows_every_cell(served: WebServer):
    """As materialized, none failed and none missing."""
    for name in EXPERIMENTS:
        answer = served.ask(
            _STATS % "numMaterialized numPartitions numFailed", key={"path": ["few", "evaluation", name]}
        )
        assert {"numMaterialized": len(CELLS), "numPartitions": len(CELLS), "numFailed": 0} == answer[
            "assetNodeOrError"
        ]["partitionStats"]


def test_what_is_finished_is_not_submitted_again(project: SubmittingProject):
    """Nothing is left of the two experiments, and no run begins."""
    before = len(project.runs())

    again = project.submit("--engine", "ray", "--device", "cpu", *only(EXPERIMENTS))

    assert "nothing of few is unfinished" in again.stderr + again.stdout
    assert before == len(project.runs())


def test_a_killed_worker_is_noticed_and_only_what_is_missing_is_done_again(project: SubmittingProject):
    """Dagster's monitor sees that the job failed; the second run of the piece has its tags and no finished cell."""
    began = time.time()
    project.submit_work(["slow"])
    wait_until(lambda: project.records("slow"), what="a finished cell", within_s=300)
    wait_until(lambda: max(note.began_at for note in project.notes(since=began)) > time.time() - 0.5,
               what="a cell under way", within_s=60)  # fmt: skip
    victim = max(project.notes(since=began), key=lambda note: note.began_at).process_id
    finished = project.records("slow")

    os.kill(victim, signal.SIGKILL)
    noticed_s = wait_until(
        lambda: [each for each in project.runs_of("slow") if each.dagster_run.status is DagsterRunStatus.FAILURE],
        what="a failed run", within_s=60,
    )  # fmt: skip
    sys.stderr.write(f"noticed after {noticed_s:.1f} s, {len(finished)} cells were finished\n")
    project.wait()

    runs = project.runs_of("slow")
    (failed,) = [each for each in runs if each.dagster_run.status is DagsterRunStatus.FAILURE]
    first, second = [each for each in runs if piece_of(each) == piece_of(failed)]
    own = {key: value for key, value in first.dagster_run.tags.items() if key.startswith(("tta/", "dagster/asset_"))}
    assert DagsterRunStatus.SUCCESS is second.dagster_run.status
    assert own.items() <= second.dagster_run.tags.items()
    assert first_records() == sorted(project.records("slow"))
    assert finished.items() <= project.records("slow").items()


def test_two_pieces_run_at_a_time_until_cancel_ends_them_within_ten_seconds(project: SubmittingProject):
    """Each on its own device; what waited does not begin, and the history says that all is cancelled."""
    began = time.time()
    workers = project.begin_endless()
    ended_s = project.cancel(workers)

    assert {"0", "1"} == {each.devices for each in project.notes(since=began)}
    assert ended_s < 10
    project.wait()
    assert {DagsterRunStatus.CANCELED} == {each.dagster_run.status for each in project.runs_of("endless")}
    assert workers == project.process_ids(since=began)
