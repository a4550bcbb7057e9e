"""Submissions to a real Slurm: a node with two devices that are none."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tta_pipeline.domain.locations import Locations
from tta_pipeline_tests.conftest import Project, in_one_line, launcher
from tta_pipeline_tests.extras.cluster.slurm_node import SlurmNode, why_not
from tta_pipeline_tests.result_paths import results_of

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.skipif(bool(why_not()), reason=why_not()),
    pytest.mark.timeout(1800),
]
ROOT = Path(__file__).parents[3]
MINE = """
title: Few digits, six cells
images: {kind: digits, seed: 0, num_test: 96, severity_table: imagenet_c}
corruptions: [gaussian_noise, contrast, brightness]
severities: [3, 5]
image_size: 32
shards: {samples_per_shard: 60}
models:
  cnn: {kind: trained, epochs: 2, width: 8}
experiments:
  source: {model: cnn, method: "noted:SOURCE", batch_size: 32}
"""
CELLS = ("brightness-3", "brightness-5", "clean-0", "contrast-3", "contrast-5", "gaussian_noise-3", "gaussian_noise-5")
NOTED = '''
"""A method that notes when and where each batch is computed, and waits while a file says so."""
import json, os, time
from pathlib import Path
from tta_pipeline.methods.catalogue import METHODS
from tta_pipeline.methods.entry import MethodEntry
from tta_pipeline.methods.batch_norm.source import Source

SOURCE = MethodEntry(implementation="noted:NotedSource", summary="Noted.", presets=METHODS["source"].presets)

class NotedSource(Source):
    def _predict(self, images):
        note = {"pid": os.getpid(), **{name: os.environ.get(name, "") for name in
                ("SLURM_JOB_ID", "SLURM_ARRAY_TASK_ID", "SLURM_RESTART_COUNT", "CUDA_VISIBLE_DEVICES")}}
        with open("notes", "a") as file:
            file.write(json.dumps(note) + "\\n")
        while Path("waits").exists():
            time.sleep(0.1)
        return super()._predict(images)
'''
SUBMIT = ("submit", "mine", "--parts", "3", "--sbatch", "--gres=gpu:1 --cpus-per-task=1")
NUM_BATCHES = 7 * 3
"""Batches of seven cells, if each is evaluated once."""


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """A user's project on a machine from which jobs are submitted."""

    folder: Path
    slurm: SlurmNode

    @property
    def project(self) -> Project:
        """The data root and the Dagster home."""
        return Project(locations=Locations(root=self.folder / "data"), home=self.folder / "home")

    @property
    def environment(self) -> dict[str, str]:
        """The environment of the user's shell."""
        own = self.project.environment
        return {
            **self.slurm.environment,
            **{name: own[name] for name in ("TTA_DATA_ROOT", "DAGSTER_HOME", "PYTHONWARNINGS")},
            "PYTHONPATH": f"{ROOT}{os.pathsep}{self.folder}",
            "OMP_NUM_THREADS": "1",
        }

    def run(self, *arguments: str, status: int = 0) -> str:
        """Run `tta-pipeline` in the project, and return what it prints."""
        os.chdir(self.folder)
        try:
            done = launcher().run(["tta-pipeline", *arguments], self.environment, timeout_s=600)
        finally:
            os.chdir(ROOT)
        assert status == done.returncode, done.stdout + done.stderr
        return done.stdout + done.stderr

    def notes(self) -> list[dict[str, str]]:
        """Return the batches that were begun."""
        path = self.folder / "notes"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def results(self) -> dict[str, str]:
        """Return the hash of the predictions of each cell; no cell has two results."""
        found = results_of(self.project.locations.root, "mine", "source")
        assert len(found) == len({each.result.key for each in found})
        return {each.result.key: each.result.evaluations[0].predicted.predictions_sha256 for each in found}

    def jobs(self) -> str:
        """Return what Slurm's queue has."""
        return self.slurm.run("squeue", "--noheader", "--array", "--format=%i %j %T")

    def hold(self) -> None:
        """Let each task wait in its next batch."""
        (self.folder / "waits").touch()

    def go_on(self) -> None:
        """Let the tasks compute."""
        (self.folder / "waits").unlink()

    def wait(self) -> None:
        """Wait until all jobs have ended."""
        wait_for("empty queue", lambda: not self.jobs())

    def wait_for_tasks(self, number: int) -> list[dict[str, str]]:
        """Return the first notes of *number* tasks that compute, once there are so many."""
        found: dict[str, dict[str, str]] = {}

        def are_there() -> bool:
            for note in self.notes():
                found.setdefault(note["SLURM_JOB_ID"], note)
            return len(found) >= number

        wait_for(f"{number} tasks at a time", are_there)
        return list(found.values())


def wait_for(what: str, is_there: Callable[[], object], *, limit_s: float = 300) -> None:
    """Wait until something is so."""
    until = time.monotonic() + limit_s
    while not is_there():
        assert time.monotonic() < until, f"found no {what} in {limit_s} s"
        time.sleep(0.2)


def new_cluster(folder: Path, slurm: SlurmNode) -> Cluster:
    """Return a project with the benchmark and nothing else."""
    folder.mkdir(parents=True)
    (folder / "noted.py").write_text(NOTED)
    made = Cluster(folder=folder, slurm=slurm)
    made.project.add_benchmark("mine", MINE)
    return made


@pytest.fixture(scope="session")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmNode]:
    """A Slurm, as long as the tests last."""
    with SlurmNode(tmp_path_factory.mktemp("slurm")) as node:
        yield node


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory, slurm: SlurmNode) -> Cluster:
    """Everything of the benchmark made by Slurm, in a folder with a name that shells and Slurm would misread."""
    made = new_cluster(tmp_path_factory.mktemp("finished") / 'it\'s 100% "mine" $HOME', slurm)
    made.run(*SUBMIT)
    made.wait()
    return made


@pytest.fixture
def prepared(finished: Cluster, tmp_path: Path) -> Cluster:
    """A project with shards and model, and without results."""
    made = new_cluster(tmp_path / "project", finished.slurm)
    left_out = shutil.ignore_patterns("results", "slurm", "report", "predictions", "states", "metrics.duckdb")
    shutil.copytree(finished.project.locations.root, made.project.locations.root, dirs_exist_ok=True, ignore=left_out)
    return made


@pytest.fixture(autouse=True)
def no_jobs_are_left(slurm: SlurmNode) -> Iterator[None]:
    """What a failed test submitted does not disturb the next one."""
    yield
    slurm.run("scancel", "--user=root", check=False)
    wait_for("empty queue", lambda: not slurm.run("squeue", "--noheader"))


def require_whole(cluster: Cluster, finished: Cluster) -> None:
    """Each cell has one result, that of the first cluster; the report is there."""
    assert finished.results() == cluster.results()
    assert (cluster.project.locations.report("mine") / "index.html").exists()


def test_slurm_predicts_what_this_machine_does(finished: Cluster, tmp_path: Path):
    """Each cell once, by three tasks on two devices; here by two processes."""
    alone = new_cluster(tmp_path / "alone", finished.slurm)
    alone.run("run", "mine", "--processes", "2")

    assert sorted(finished.results()) == sorted(CELLS)
    assert NUM_BATCHES == len(finished.notes())
    assert 3 == len({note["SLURM_ARRAY_TASK_ID"] for note in finished.notes()})
    assert {"0", "1"} >= {note["CUDA_VISIBLE_DEVICES"] for note in finished.notes()}
    require_whole(alone, finished)


def test_a_task_whose_time_is_over_is_requeued_and_a_killed_one_is_submitted_again(
    prepared: Cluster, finished: Cluster
):
    """The first goes on by itself; of the second, the report lacks cells, and the next submission makes them alone."""
    prepared.hold()
    prepared.run(*SUBMIT)
    over, killed = prepared.wait_for_tasks(2)
    prepared.slurm.run("scancel", "--batch", "--signal=USR1", over["SLURM_JOB_ID"])
    os.kill(int(killed["pid"]), signal.SIGKILL)
    wait_for("task that goes on", lambda: any(note["SLURM_RESTART_COUNT"] == "1" for note in prepared.notes()))
    prepared.go_on()
    prepared.wait()
    left = finished.results().keys() - prepared.results().keys()
    before = len(prepared.notes())

    prepared.run(*SUBMIT)
    prepared.wait()

    assert 0 < len(left) < len(CELLS)
    assert 3 * len(left) == len(prepared.notes()) - before
    require_whole(prepared, finished)


def test_a_killed_node_daemon_costs_no_cell(prepared: Cluster, finished: Cluster):
    """Slurm requeues its tasks when it misses the node; those of before have ended by then, or are waited for."""
    prepared.hold()
    prepared.run(*SUBMIT)
    prepared.wait_for_tasks(2)
    prepared.slurm.kill_node_daemon()
    wait_for("node that is down", lambda: "down" in prepared.slurm.run("sinfo", "--noheader", "--format=%T"))
    prepared.slurm.start_node_daemon()
    wait_for("task that goes on", lambda: any(note["SLURM_RESTART_COUNT"] == "1" for note in prepared.notes()))
    prepared.go_on()
    prepared.wait()

    require_whole(prepared, finished)


def test_two_submissions_to_a_full_queue_do_everything_once(prepared: Cluster, finished: Cluster):
    """They wait for a node, and for each other; a third array, by hand, for the cells that the first is at."""
    other = prepared.slurm.run("sbatch", "--parsable", "--exclusive", "--output=/dev/null", "--wrap=sleep 1000").strip()
    wait_for("full node", lambda: f"{other} wrap RUNNING" in prepared.jobs())
    prepared.run(*SUBMIT)
    prepared.run(*SUBMIT)
    script = prepared.project.locations.slurm("mine") / "parts.sh"
    subprocess.run(["sbatch", "--array=1-3", "--cpus-per-task=1", script], env=prepared.environment, check=True,
                   cwd=prepared.folder, stdout=subprocess.DEVNULL)  # fmt: skip
    assert 1 == prepared.jobs().count("RUNNING")
    assert not prepared.notes()
    prepared.slurm.run("scancel", other)
    prepared.wait()

    assert NUM_BATCHES == len(prepared.notes())
    require_whole(prepared, finished)


def test_an_array_that_slurm_refuses_leaves_nothing_submitted(finished: Cluster):
    """Also the job before it, which was taken, is cancelled; the error is one line."""
    told = finished.run("submit", "mine", "--parts", "90000", status=1)

    assert "error: `sbatch" in told
    assert 1 == len(in_one_line(told).strip().splitlines())
    wait_for("empty queue", lambda: not finished.jobs(), limit_s=10)


def test_a_part_asks_for_what_it_lacks(slurm: SlurmNode, tmp_path: Path):
    """In one line, rather than that each task makes it."""
    cluster = new_cluster(tmp_path / "project", slurm)

    told = cluster.run("run", "mine", "--part", "1/3", "--device", "cpu", status=1)

    assert 1 == len(in_one_line(told).strip().splitlines())
    assert "tta-pipeline run mine --part prepare" in told
    assert sys.executable not in told
