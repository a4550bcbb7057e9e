"""`run --part` and `run --processes`: the same results, once each, and an end of all processes."""

import os
import shutil
import signal
import sys
import threading
import time
from pathlib import Path

import pytest

from tta_pipeline.cli.run_parts import run_parts
from tta_pipeline.results.database.database import open_metrics
from tta_pipeline_tests.conftest import SMALL, Project, copy_benchmark, in_one_line, launcher, new_project
from tta_pipeline_tests.result_paths import results_of

EXPERIMENTS = ("source", "norm", "tent")


def predictions(project: Project) -> list[tuple[str, str, str]]:
    """Return experiment, key and hash of the predictions of each result."""
    return sorted(
        (name, each.result.key, each.result.evaluations[0].predicted.predictions_sha256)
        for name in EXPERIMENTS
        for each in results_of(project.locations.root, "small", name)
    )


def program(path: Path, lines: str) -> str:
    """Write a program that does what *lines* of shell say; return its path."""
    path.write_text(f"#!/bin/sh\n{lines}\n")
    path.chmod(0o755)
    return str(path)


WITH_PYTHON = """
import sys
sys.executable = sys.argv.pop(1)
from tta_pipeline.__main__ import main
main()
"""
"""The program of the verbs; processes that it starts run the Python that the first argument names."""


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
    """Each that was asked for once and in the database, after the shards that lack; each line names its part."""
    shutil.rmtree(prepared.locations.root / "small/shards/contrast/5")
    asked = ("--experiment", "norm", "--corruption", "contrast", "--severity", "3", "--severity", "5")

    done = launcher().run(
        ["python", "-c", WITH_PYTHON, str(launcher().python), "run", "small", *asked,
         "--processes", "2"], prepared.environment, timeout_s=600,
    )  # fmt: skip

    assert 0 == done.returncode, done.stderr
    expected = [each for each in predictions(sweep) if each[0] == "norm" and each[1].startswith("contrast-")]
    assert expected == predictions(prepared)
    assert {"1/2", "2/2"} <= {line.partition(":")[0] for line in done.stderr.splitlines()}
    with open_metrics(prepared.locations.metrics) as connection:
        (counted,) = connection.execute("SELECT count(*) FROM evaluations WHERE counts").fetchone() or ()
    assert 2 == len(expected) == counted


def test_ctrl_c_ends_all_processes(prepared: Project, tmp_path: Path):
    """Within seconds, even those that ignore it, with the status of an interrupted command."""
    log, deaf = tmp_path / "log", program(tmp_path / "deaf", "trap '' INT\necho started\nexec sleep 600")
    with log.open("wb") as file:
        command = ["python", "-c", WITH_PYTHON, deaf, "run", "small", "--processes", "2"]
        running = launcher().start(command, env=prepared.environment, stdout=file, stderr=file, start_new_session=True)
    while log.read_bytes().count(b"/2: started") < 2:
        assert running.poll() is None, log.read_text()
        time.sleep(0.1)
    started = Path(f"/proc/{running.pid}/task/{running.pid}/children").read_text().split()

    os.killpg(running.pid, signal.SIGINT)

    assert 128 + signal.SIGINT == running.wait(10), log.read_text()
    assert 2 == len(started)
    assert not [pid for pid in started if Path(f"/proc/{pid}/stat").exists()]


def test_a_process_that_ignores_ctrl_c_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """When the command ends, none of its processes is left."""
    deaf = program(tmp_path / "deaf", f"trap '' INT\necho $$ > {tmp_path}/$$.pid\nexec sleep 600")
    monkeypatch.setattr(sys, "executable", deaf)

    def end_once_both_run() -> None:
        while len(list(tmp_path.glob("*.pid"))) < 2:
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=end_once_both_run, daemon=True).start()
    with pytest.raises(SystemExit):
        run_parts("small", (), num_parts=2)

    started = [int(path.stem) for path in tmp_path.glob("*.pid")]
    assert 2 == len(started)
    assert not [pid for pid in started if Path(f"/proc/{pid}").exists()]


def test_a_part_that_is_killed_has_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Memory that runs out ends a process by a signal, and not with a status."""
    monkeypatch.setattr(sys, "executable", program(tmp_path / "killed", "kill -KILL $$"))

    assert 2 == run_parts("small", (), num_parts=2)


def test_parts_share_the_cores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Each computes with an equal part of them, unless the user has set the number of threads."""
    monkeypatch.setattr(sys, "executable", program(tmp_path / "asked", f"echo $OMP_NUM_THREADS >> {tmp_path}/threads"))
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)

    run_parts("small", (), num_parts=2)

    assert ["4", "4"] == (tmp_path / "threads").read_text().split()
