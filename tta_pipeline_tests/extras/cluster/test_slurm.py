"""Submissions to a real Slurm: a node with two devices that are none."""

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

import dagster as dg
import pytest

from tta_pipeline.domain.locations import Locations
from tta_pipeline_tests.conftest import Project, launcher
from tta_pipeline_tests.extras.cluster.slurm_node import SlurmNode, why_not
from tta_pipeline_tests.flat_facts import flat_row
from tta_pipeline_tests.result_paths import results_of
from tta_pipeline_tests.test_guides import HOW_TO, commands

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.skipif(bool(why_not()), reason=why_not()),
    pytest.mark.timeout(1800),
]
ROOT = Path(__file__).parents[3]
BIN = Path(sys.executable).parent
MINE = """
title: Few digits, six cells
source: {kind: digits, seed: 0, num_test: 96, severity_table: imagenet_c}
corruptions: [gaussian_noise, contrast, brightness]
severities: [3, 5]
image_size: 32
shards: {samples_per_shard: 60}
models:
  cnn: {kind: trained, epochs: 2, width: 8}
experiments:
  source: {model: cnn, method: "noted:SOURCE", batch_size: 32}
  tent: {model: cnn, method: "noted:TENT", preset: cifar, batch_size: 32}
"""
CELLS = tuple(f"{name}|{severity}" for name in ("gaussian_noise", "contrast", "brightness") for severity in (3, 5))
NOTED = '''
"""Methods that note when and where each batch is computed, and do what files beside them say."""
import json, os, time
from pathlib import Path
from tta_pipeline.util import graceful_stop
from tta_pipeline.methods.catalogue import METHODS
from tta_pipeline.methods.entry import MethodEntry
from tta_pipeline.methods.batch_norm.source import Source
from tta_pipeline.methods.entropy.tent import Tent

SOURCE = MethodEntry(implementation="noted:NotedSource", summary="Noted.", presets=METHODS["source"].presets)
TENT = MethodEntry(implementation="noted:NotedTent", summary="Noted.", presets=METHODS["tent"].presets)

STARTED = time.time()

class Noted:
    def _predict(self, images):
        if Path("fails").exists() and os.environ["SLURM_ARRAY_TASK_ID"] == "0":
            raise RuntimeError("this piece was told to fail")
        note = {"started": STARTED, "at": time.time(), "pid": os.getpid(), **{name: os.environ.get(name, "") for name in
                ("SLURM_JOB_ID", "SLURM_ARRAY_TASK_ID", "SLURM_RESTART_COUNT", "CUDA_VISIBLE_DEVICES")}}
        with open("notes", "a") as file:
            file.write(json.dumps(note) + "\\n")
        while Path("waits").exists() and not graceful_stop.is_stop_requested():
            time.sleep(0.1)
        return super()._predict(images)

class NotedSource(Noted, Source):
    pass

class NotedTent(Noted, Tent):
    pass
'''
CONFIG = "device: [--gres=gpu:1, --cpus-per-task=1]\ncpu: [--cpus-per-task=1]\n"
SUBMIT = ("submit", "mine", "--engine", "slurm", "--device", "cpu", "--devices", "2", "--engine-config", "slurm.yaml")


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """A user's project on a machine from which jobs are submitted."""

    folder: Path
    slurm: SlurmNode

    @property
    def project(self) -> Project:
        """The data root and the Dagster home."""
        return Project(locations=Locations(root=self.folder / "data"), home=self.folder)

    @property
    def environment(self) -> dict[str, str]:
        """The environment of the user's shell; commands in `programs` come before Slurm's."""
        slurm = self.slurm.environment
        return {
            **slurm,
            **{name: self.project.environment[name] for name in ("TTA_DATA_ROOT", "DAGSTER_HOME", "PYTHONWARNINGS")},
            "PATH": f"{self.folder / 'programs'}:{slurm['PATH']}",
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

    def notes(self) -> list[dict]:
        """Return the batches that were computed, in the order of their ends."""
        path = self.folder / "notes"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def facts(self, experiment: str) -> dict[str, dict]:
        """Return the facts of each evaluated cell."""
        found = results_of(self.project.locations.root, "mine", experiment)
        return {each.result.key: flat_row(each.result.evaluations[0]) for each in found}

    def records(self, experiment: str) -> list[str]:
        """Return the key of each result of an experiment."""
        return sorted(each.result.key for each in results_of(self.project.locations.root, "mine", experiment))

    def jobs(self) -> str:
        """Return what Slurm's queue has."""
        return self.slurm.run("squeue", "--noheader", "--array", "--format=%i %j %T")

    def hold(self) -> None:
        """Let each piece wait in its next batch."""
        (self.folder / "waits").touch()

    def go_on(self) -> None:
        """Let the pieces compute."""
        (self.folder / "waits").unlink()


ONCE = sorted(f"{cell.replace('|', '-')}" for cell in (*CELLS, "clean|0"))


def wait_for(what: str, is_there: Callable[[], object], *, limit_s: float = 300) -> None:
    """Wait until something is so."""
    until = time.monotonic() + limit_s
    while not is_there():
        assert time.monotonic() < until, f"found no {what} in {limit_s} s"
        time.sleep(0.2)


def new_cluster(folder: Path, slurm: SlurmNode) -> Cluster:
    """Return a project with the benchmark and nothing else."""
    folder.mkdir(parents=True)
    (folder / "dagster.yaml").write_text("telemetry: {enabled: false}\n")
    (folder / "noted.py").write_text(NOTED)
    (folder / "slurm.yaml").write_text(CONFIG)
    (folder / "programs").mkdir()
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
    told = made.run(*SUBMIT, "--watch")
    (made.folder / "told").write_text(told)
    return made


@pytest.fixture
def prepared(finished: Cluster, tmp_path: Path) -> Cluster:
    """A project with shards and model, and without results."""
    made = new_cluster(tmp_path / "project", finished.slurm)
    left_out = shutil.ignore_patterns("results", "submissions", "report", "predictions", "states")
    shutil.copytree(finished.project.locations.root, made.project.locations.root, dirs_exist_ok=True, ignore=left_out)
    made.project.locations.metrics.unlink()
    return made


@pytest.fixture(autouse=True)
def no_jobs_are_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """What a failed test submitted does not disturb the next one."""
    yield
    if "slurm" in request.fixturenames:
        node: SlurmNode = request.getfixturevalue("slurm")
        node.run("scancel", "--user=root", check=False)
        wait_for("empty queue", lambda: not node.run("squeue", "--noheader"))


def test_slurm_predicts_what_a_local_run_does(finished: Cluster, tmp_path: Path):
    """To the last prediction of all cells of both experiments, made from nothing; each cell once; a report, too."""
    alone = new_cluster(tmp_path / "alone", finished.slurm)
    os.chdir(alone.folder)
    try:
        done = launcher().run(
            ["dagster", "asset", "materialize", "-m", "tta_pipeline.definitions", "--select",
             "+group:mine or +group:mine_clean", "--partition-range", f"{CELLS[0]}...{CELLS[-1]}"],
            alone.environment, timeout_s=600,
        )  # fmt: skip
    finally:
        os.chdir(ROOT)
    assert 0 == done.returncode, done.stderr[-3000:]

    for experiment in ("source", "tent"):
        here, there = alone.facts(experiment), finished.facts(experiment)
        assert 7 == len(here)
        assert here.keys() == there.keys()
        assert {"cpu"} == {facts["device"] for facts in there.values()}
        assert all(here[cell]["predictions_sha256"] == there[cell]["predictions_sha256"] for cell in here)
        assert ONCE == finished.records(experiment)
    assert (finished.project.locations.report("mine") / "index.html").exists()


def test_two_pieces_run_at_a_time_and_never_two_on_a_device(finished: Cluster):
    """By what the processes themselves note of begin, end and the device that they see."""
    spans: dict[int, tuple[float, float, str]] = {
        note["pid"]: (note["started"], note["at"], note["CUDA_VISIBLE_DEVICES"]) for note in finished.notes()
    }
    together = [
        (one, other) for one, other in combinations(spans.values(), 2) if one[0] < other[1] and other[0] < one[1]
    ]

    assert {"0", "1"} == {device for _, _, device in spans.values()}
    assert together, "no two pieces ran at a time"
    assert all(one[2] != other[2] for one, other in together)
    assert not [
        three for three in combinations(spans.values(), 3) if max(s[0] for s in three) < min(s[1] for s in three)
    ]


def test_the_history_has_every_cell(finished: Cluster):
    """The web UI shows what the cluster did: cells, shards, and what has no partitions."""
    with dg.DagsterInstance.from_config(str(finished.folder)) as instance:
        for asset in ("evaluation/source", "evaluation/tent", "shard_manifest"):
            key = dg.AssetKey(["mine", *asset.split("/")])
            assert set(CELLS) == set(instance.get_materialized_partitions(key)), asset
        for asset in ("source_model", "robustness_report"):
            assert instance.get_latest_materialization_event(dg.AssetKey(["mine", asset])), asset


def test_what_slurm_finished_is_not_submitted_again(finished: Cluster):
    """Nor is anything left in the queue, and --status says that all is done."""
    assert "nothing of mine is unfinished" in finished.run(*SUBMIT)
    assert "" == finished.jobs()
    assert "pieces done" in finished.run("submit", "mine", "--status")


def test_the_first_command_of_the_recipe_works_as_printed(prepared: Cluster):
    """It plans, with the configuration in the repository, and submits nothing."""
    shutil.copytree(ROOT / "cluster", prepared.folder / "cluster")
    first = commands(HOW_TO[HOW_TO.index("## Run on a Slurm cluster") :])[0]
    program, *arguments = shlex.split(first, comments=True)
    assert "tta-pipeline" == program
    assert "--dry-run" in arguments

    told = prepared.run(*arguments)

    assert "evaluations" in told
    assert "" == prepared.jobs()


def test_a_kill_a_signal_and_a_lost_node_cost_no_finished_cell(prepared: Cluster):
    """A killed process is tried again, one whose time is over goes on later, so do those of a node that is down.

    Somebody who watches goes on watching while Slurm does not answer.
    """
    prepared.hold()
    squeue = prepared.folder / "programs" / "squeue"
    squeue.write_text(f'#!/bin/bash\n[ -e broken ] && {{ echo "no controller" >&2; exit 1; }}\n'
                      f'exec {shutil.which("squeue")} "$@"\n')  # fmt: skip
    squeue.chmod(0o755)
    prepared.run(*SUBMIT, "--experiment", "source", "--piece", "corruption")
    with (prepared.folder / "watched").open("wb") as watched:
        watching = subprocess.Popen([BIN / "tta-pipeline", "submit", "mine", "--status", "--watch"], stdout=watched,
                                    stderr=watched, env=prepared.environment, cwd=prepared.folder)  # fmt: skip

    wait_for("two pieces at a time", lambda: 2 == len({note["SLURM_ARRAY_TASK_ID"] for note in prepared.notes()}))
    one, other = {note["SLURM_ARRAY_TASK_ID"]: note for note in prepared.notes()}.values()
    os.kill(one["pid"], signal.SIGKILL)
    os.kill(other["pid"], signal.SIGUSR1)  # as Slurm does when the time is nearly over
    prepared.go_on()

    def noted(at: dict, **facts: str) -> list[dict]:
        wanted = {"SLURM_ARRAY_TASK_ID": at["SLURM_ARRAY_TASK_ID"], **facts}
        return [note for note in prepared.notes() if wanted.items() <= note.items()]

    wait_for("end of its cell", lambda: len(noted(other)) >= 3)
    prepared.hold()
    (prepared.folder / "broken").touch()
    wait_for("second try", lambda: len({note["pid"] for note in noted(one)}) > 1)
    assert {""} == {note["SLURM_RESTART_COUNT"] for note in noted(one)}, "a second try is in the same job"
    wait_for("word of squeue's", lambda: "no controller" in (prepared.folder / "watched").read_text())
    (prepared.folder / "broken").unlink()

    host = prepared.slurm.host
    prepared.slurm.run("scontrol", "update", f"node={host}", "state=down", "reason=test")
    wait_for("empty node", lambda: "RUNNING" not in prepared.jobs())
    prepared.go_on()
    prepared.slurm.run("scontrol", "update", f"node={host}", "state=resume")

    assert 0 == watching.wait(300), (prepared.folder / "watched").read_text()
    assert ONCE == prepared.records("source")
    assert 3 == len([note for note in noted(other) if note["pid"] == other["pid"]]), "it ended after its cell"
    assert noted(other, SLURM_RESTART_COUNT="1")
    assert noted(one, SLURM_RESTART_COUNT="1")
    assert (prepared.project.locations.report("mine") / "index.html").exists()


def test_slurm_tells_a_piece_that_its_time_is_nearly_over(prepared: Cluster):
    """It ends after the cell that it is at, and goes on in the same job when that has begun again."""
    (prepared.folder / "slurm.yaml").write_text(f"{CONFIG.replace('task=1]', 'task=1, --time=1]')}warn_s: 10\n")
    prepared.hold()
    prepared.run(*SUBMIT, "--experiment", "source")
    wait_for("piece that goes on", lambda: any(note["SLURM_RESTART_COUNT"] == "1" for note in prepared.notes()))
    prepared.go_on()
    prepared.run("submit", "mine", "--status", "--watch")

    assert ONCE == prepared.records("source")


def test_what_is_cancelled_by_verb_or_by_hand_is_taken_up_again(prepared: Cluster):
    """The verb stops the jobs; what was finished is not evaluated again."""
    of_source = (*SUBMIT, "--experiment", "source")
    prepared.run(*of_source)
    wait_for("finished cell", lambda: prepared.records("source"))
    prepared.hold()
    assert "nothing else is unfinished" in prepared.run(*of_source)

    prepared.run("submit", "mine", "--cancel")
    wait_for("empty queue", lambda: not prepared.jobs())
    told = prepared.run("submit", "mine", "--status")
    assert "cancelled" in told
    assert "failed;" not in told
    before = prepared.records("source")
    assert 0 < len(before) < 7
    with dg.DagsterInstance.from_config(str(prepared.folder)) as instance:
        known = instance.get_materialized_partitions(dg.AssetKey(["mine", "evaluation", "source"]))
    assert {f"{cell.replace('|', '-')}" for cell in known} == {*before} - {"clean-0"}

    prepared.run(*of_source)
    wait_for("job that runs", lambda: "RUNNING" in prepared.jobs())
    prepared.slurm.run("scancel", "--user=root")
    wait_for("empty queue", lambda: not prepared.jobs())
    assert ": lost; " in prepared.run("submit", "mine", "--status", status=1)

    prepared.go_on()
    prepared.run(*of_source, "--watch")
    assert ONCE == prepared.records("source")


def test_a_piece_that_fails_twice_is_named_with_its_log(prepared: Cluster):
    """The others are done, so is the report, and what failed is all that is submitted afterwards."""
    (prepared.folder / "fails").touch()

    told = prepared.run(*SUBMIT, "--experiment", "source", "--watch", status=1)

    (problem,) = [line for line in told.splitlines() if ": failed; log: " in line]
    log = Path(problem.partition("log: ")[2])
    assert 2 == log.read_text().count("RuntimeError('this piece was told to fail')")
    assert (prepared.project.locations.report("mine") / "index.html").exists()
    assert problem in prepared.run("submit", "mine", "--status", status=1)
    assert 5 == len(prepared.records("source"))

    (prepared.folder / "fails").unlink()
    prepared.run(*SUBMIT, "--experiment", "source", "--watch")
    assert ONCE == prepared.records("source")
    newest = max((prepared.project.locations.submissions("mine")).glob("*/evaluations.txt"))
    assert "0\n" == newest.read_text()


def test_an_option_that_slurm_refuses_leaves_nothing_submitted(slurm: SlurmNode, tmp_path: Path):
    """Also where it is refused after the first stages were taken."""
    cluster = new_cluster(tmp_path / "project", slurm)
    (cluster.folder / "slurm.yaml").write_text("device: [--nonsense]\ncpu: [--cpus-per-task=1]\n")

    told = cluster.run(*SUBMIT, status=1)

    assert "unrecognized option '--nonsense'" in told
    wait_for("empty queue", lambda: not cluster.jobs(), limit_s=10)
    assert "0 of" in cluster.run("submit", "mine", "--status")


def test_a_controller_that_does_not_answer_is_told_in_a_line(slurm: SlurmNode, tmp_path: Path):
    """Nothing is submitted."""
    cluster = new_cluster(tmp_path / "project", slurm)
    elsewhere = (slurm.folder / "slurm.conf").read_text().replace("SlurmctldPort=", "SlurmctldPort=1\n#")
    (tmp_path / "slurm.conf").write_text(f"{elsewhere}MessageTimeout=5\n")

    done = subprocess.run(
        [BIN / "tta-pipeline", *SUBMIT], cwd=cluster.folder, capture_output=True, text=True, check=False,
        env={**cluster.environment, "SLURM_CONF": str(tmp_path / "slurm.conf")},
    )  # fmt: skip

    assert 1 == done.returncode
    assert "SubmissionError: `squeue" in done.stderr
    assert 1 == len(done.stderr.strip().splitlines())
