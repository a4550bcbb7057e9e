"""`run --part` and `run --processes`: the same results, once each, and an end of all processes."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tta_pipeline.results.database.database import open_metrics
from tta_pipeline_tests.conftest import SMALL, Project, copy_benchmark, in_one_line, new_project
from tta_pipeline_tests.result_paths import results_of

EXPERIMENTS = ("source", "norm", "tent")


def predictions(project: Project) -> list[tuple[str, str, str]]:
    """Return experiment, key and hash of the predictions of each result."""
    return sorted(
        (name, each.result.key, each.result.evaluations[0].predicted.predictions_sha256)
        for name in EXPERIMENTS
        for each in results_of(project.locations.root, "small", name)
    )


def test_a_part_without_shards_says_what_to_type(project: Project):
    """In one line, rather than that each part makes them."""
    project.add_benchmark("small", SMALL)

    done = project.run("tta-pipeline", "run", "small", "--part", "1/3")

    assert 1 == done.returncode
    assert 1 == len(in_one_line(done.stderr).strip().splitlines())
    assert done.stderr.strip().endswith("`tta-pipeline run small --part prepare`")


@pytest.fixture
def prepared(sweep: Project, tmp_path: Path) -> Project:
    """The small benchmark with its shards and its model, and without results."""
    project = new_project(tmp_path)
    copy_benchmark(sweep, project, without=("report", "results", "source"))
    project.add_benchmark("small", SMALL)
    return project


def test_two_processes_make_the_results_of_one(sweep: Project, prepared: Project):
    """Each result once and in the database; each line names its part."""
    project = prepared

    done = project.run("tta-pipeline", "run", "small", "--processes", "2")

    assert 0 == done.returncode, done.stderr
    assert predictions(sweep) == predictions(project)
    assert {"1/2", "2/2"} <= {line.partition(":")[0] for line in done.stderr.splitlines()}
    with open_metrics(project.locations.metrics) as connection:
        (counted,) = connection.execute("SELECT count(*) FROM evaluations WHERE counts").fetchone() or ()
    assert len(predictions(sweep)) == counted


def test_ctrl_c_ends_all_processes(prepared: Project, tmp_path: Path):
    """Within seconds, with the status of an interrupted command."""
    project, log = prepared, tmp_path / "log"
    with log.open("wb") as file:
        command = [sys.executable, "-m", "tta_pipeline", "run", "small", "--processes", "2"]
        running = subprocess.Popen(command, env=project.environment, stdout=file, stderr=file, start_new_session=True)
    while b"1/2: " not in log.read_bytes():
        assert running.poll() is None, log.read_text()
        time.sleep(0.1)
    started = Path(f"/proc/{running.pid}/task/{running.pid}/children").read_text().split()

    os.killpg(running.pid, signal.SIGINT)

    assert 128 + signal.SIGINT == running.wait(10), log.read_text()
    assert 2 == len(started)
    time.sleep(1)
    assert not [pid for pid in started if Path(f"/proc/{pid}/stat").exists()]
