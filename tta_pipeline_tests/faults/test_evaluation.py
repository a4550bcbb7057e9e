"""What must hold when an evaluation is interrupted, killed or run in an odd environment."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tta_pipeline.results.result_files import read_result
from tta_pipeline_tests.conftest import SMALL, SMALL_RANGE, Project, copy_benchmark, launcher, new_project
from tta_pipeline_tests.result_paths import results_of

BIN = Path(sys.executable).parent
REPOSITORY = Path(__file__).parents[2]
SLOW = SMALL.replace("\nexperiments:", "\nexperiments:\n  slow: {model: cnn, method: norm, batch_size: 2, seed: SEED}")
KEY = "small/evaluation/slow"
ON_CPU = json.dumps({"resources": {"compute": {"config": {"device": "cpu"}}}})


@pytest.fixture
def slow(tmp_path: Path, sweep: Project) -> Project:
    """The small benchmark with its shards and model, and an experiment that was never run."""
    project = new_project(tmp_path)
    project.add_benchmark("small", SLOW.replace("SEED", "0"))
    copy_benchmark(sweep, project, without=("source",))
    return project


def start(project: Project) -> subprocess.Popen[str]:
    """Start the evaluation of all cells in a session of its own, as a terminal would."""
    command = [
        "dagster", "asset", "materialize", "-m", "tta_pipeline.definitions", "--select", KEY,
        "--partition-range", SMALL_RANGE, "--config-json", ON_CPU,
    ]  # fmt: skip
    return launcher().start(
        command, env=project.environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True
    )


def records(project: Project) -> list[Path]:
    """Return the results of the slow experiment, each of which can be read."""
    found = results_of(project.locations.root, "small", "slow")
    assert all(each.result.evaluations[0].scores.num_samples == 150 for each in found)
    return [each.path for each in found]


def wait_until(condition: Callable[[], object], *, within_s: float = 400) -> None:
    """Return when *condition* holds."""
    until = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < until, condition
        time.sleep(0.05)


def members(session: int) -> list[str]:
    """Return the command lines of the living processes of a session."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            state, _, _, their_session = (folder / "stat").read_text().rpartition(")")[2].split()[:4]
            if int(their_session) == session and state != "Z":
                found.append((folder / "cmdline").read_text())
        except OSError:
            continue
    return found


def test_an_interrupted_or_killed_evaluation_is_continued(slow: Project):
    """After Ctrl-C in the middle of a range there are whole results and no process, after SIGKILL whole results; the
    next run does what is missing and nothing twice.
    """
    done: dict[Path, bytes] = {}
    for end in (signal.SIGINT, signal.SIGKILL):
        with start(slow) as run:
            wait_until(lambda run=run, done=done: len(records(slow)) > len(done) or run.poll() is not None)
            os.killpg(run.pid, end)
            ended = time.monotonic()
            run.communicate()
            assert time.monotonic() - ended < 120
        wait_until(lambda run=run: not members(run.pid), within_s=60)
        assert signal.SIGKILL == end or not list(slow.locations.root.rglob("*unpublished*"))
        assert done == {path: path.read_bytes() for path in done}
        done = {path: path.read_bytes() for path in records(slow)}

    finished = slow.materialize(KEY, "--partition-range", SMALL_RANGE, "--config-json", ON_CPU)

    assert 0 == finished.returncode, finished.stderr[-3000:]
    assert 4 == len(records(slow))
    assert done == {path: path.read_bytes() for path in done}


PLAIN = {"PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1"}
ODD = {
    "PYTHONHASHSEED": "1",  # another order of every set of texts
    "PYTHONOPTIMIZE": "2",  # neither assert nor docstrings
    "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "LC_ALL": "C",  # text files are ASCII
    "TZ": "Pacific/Kiritimati",
    "OMP_NUM_THREADS": "3", "MKL_NUM_THREADS": "3",  # sums are added up in other parts
    "PYTORCH_JIT": "0",
    "NPY_PROMOTION_STATE": "legacy",  # before NumPy 2.2
}  # fmt: skip
"""What users have set for something else. NVIDIA_TF32_OVERRIDE is not among it: it decides results, and a fingerprint
has it."""
EVALUATES = """
import json, sys
from pathlib import Path
from tta_pipeline.domain.locations import Locations
from tta_pipeline.domain.cells import WHOLE
from tta_pipeline_tests.evaluation.small import evaluated, results_of
own = results_of(Locations(root=Path(sys.argv[1])), protocol=json.loads(sys.argv[2]))
print(json.dumps(evaluated(own, WHOLE, num_threads=1)))
"""
DRAWN = json.dumps({"shift": "gradual", "order": "dirichlet", "delta": 0.5, "corruption_order": "seeded"})


def rows_in(environment: dict[str, str], folder: Path, sweep: Project) -> list[dict[str, Any]]:
    """Evaluate a stream on a copy of the small benchmark, in a process that begins with *environment*."""
    ignored = shutil.ignore_patterns("results", "predictions")
    shutil.copytree(sweep.locations.root / "small", folder / "small", ignore=ignored)
    known = {name: value for name, value in os.environ.items() if name not in ODD}
    done = subprocess.run(
        [sys.executable, "-c", EVALUATES, folder, DRAWN],
        env=known | environment, cwd=REPOSITORY, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert 0 == done.returncode, done.stderr[-3000:]
    rows: list[dict[str, Any]] = json.loads(done.stdout)
    return rows


@pytest.mark.slow
def test_an_odd_environment_changes_nothing(sweep: Project, tmp_path: Path):
    """A process that begins with it sees the same samples in the same order, predicts the same, and says so."""
    plain, odd = rows_in(PLAIN, tmp_path / "plain", sweep), rows_in(ODD, tmp_path / "odd", sweep)

    decided = ("corruption", "severity", "order_hash", "fingerprint", "predictions_sha256", "error")
    assert [[row[name] for name in decided] for row in plain] == [[row[name] for name in decided] for row in odd]
    assert 4 <= len(plain)
    assert 0 < plain[0]["predicted_class_entropy"]


@pytest.mark.slow
def test_the_clock_of_the_wall_times_nothing(slow: Project):
    """A time zone far away changes no duration, and times are written in UTC."""
    environment = {**slow.environment, "TZ": "Pacific/Kiritimati"}
    command = [
        BIN / "dagster", "asset", "materialize", "-m", "tta_pipeline.definitions", "--select", KEY,
        "--partition", "contrast|5",
    ]  # fmt: skip
    assert 0 == subprocess.run(command, env=environment, capture_output=True, check=False).returncode

    (path,) = records(slow)
    result = read_result(path).result
    (row,) = result.evaluations
    assert 0 < row.time.data_wait_s + row.time.compute_s <= row.time.wall_s < 600
    assert result.started_at.endswith("+00:00")
    assert result.finished_at.endswith("+00:00")
