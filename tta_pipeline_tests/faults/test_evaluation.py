"""What must hold when an evaluation is interrupted, killed or run in a hostile place."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tta_pipeline.shards.manifest import ShardSet
from tta_pipeline.streaming.order import as_stored
from tta_pipeline.streaming.reader import Stream
from tta_pipeline_tests.conftest import SMALL, SMALL_RANGE, Project, new_project
from tta_pipeline_tests.interrupts import interruptible

BIN = Path(sys.executable).parent
SLOW = SMALL.replace("\nexperiments:", "\nexperiments:\n  slow: {model: cnn, method: norm, batch_size: 2, seed: SEED}")
KEY = "small/evaluation/slow"
LAUNCHED = json.dumps(
    {"resources": {"compute": {"config": {"launch": f"{BIN}/torchrun --nproc-per-node 2", "device": "cpu"}}}}
)
IN_PROCESS = json.dumps({"resources": {"compute": {"config": {"device": "cpu"}}}})


@pytest.fixture
def slow(tmp_path: Path, sweep: Project) -> Project:
    """The small benchmark with its shards and model, and an experiment that was never run."""
    project = new_project(tmp_path)
    project.add_benchmark("small", SLOW.replace("SEED", "0"))
    shutil.copytree(sweep.locations.root / "small", project.locations.root / "small", dirs_exist_ok=True)
    return project


def start(project: Project, config: str) -> subprocess.Popen[bytes]:
    """Start the evaluation of all cells in a session of its own, as a terminal would."""
    command = [
        BIN / "dagster", "asset", "materialize", "-m", "tta_pipeline.definitions", "--select", KEY,
        "--partition-range", SMALL_RANGE, "--config-json", config,
    ]  # fmt: skip
    with interruptible():
        return subprocess.Popen(
            command, env=project.environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True
        )


def records(project: Project) -> list[Path]:
    """Return the records of the slow experiment, each of which can be read."""
    paths = sorted((project.locations.results("small") / "evaluations" / "slow").rglob("[0-9]*.json"))
    assert all(json.loads(path.read_text())["record"]["facts"]["num_samples"] == 150 for path in paths)
    return paths


def wait_until(condition: Callable[[], object], *, within_s: float = 120) -> None:
    """Return when *condition* holds."""
    until = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < until, condition
        time.sleep(0.01)


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


@pytest.mark.parametrize("config", [IN_PROCESS, LAUNCHED], ids=["in process", "torchrun"])
def test_an_interrupted_evaluation_leaves_whole_results_and_no_process(slow: Project, config: str):
    """After Ctrl-C in the middle of a range, the next run does what is missing and nothing twice."""
    with start(slow, config) as run:
        wait_until(lambda: records(slow) or run.poll() is not None)
        os.killpg(run.pid, signal.SIGINT)
        interrupted = time.monotonic()
        run.communicate()
        assert time.monotonic() - interrupted < 30
    wait_until(lambda: not members(run.pid), within_s=10)
    done = records(slow)
    assert not list(slow.locations.root.rglob("*unpublished*"))

    finished = slow.materialize(KEY, "--partition-range", SMALL_RANGE, "--config-json", config)

    assert 0 == finished.returncode, finished.stderr[-3000:]
    assert 4 == len(records(slow))
    assert set(done) <= set(records(slow))


def test_a_killed_evaluation_is_continued(slow: Project):
    """After SIGKILL, finished cells are not evaluated again, and the others are."""
    with start(slow, IN_PROCESS) as run:
        wait_until(lambda: records(slow) or run.poll() is not None)
        os.killpg(run.pid, signal.SIGKILL)
    done = {path: path.read_bytes() for path in records(slow)}

    finished = slow.materialize(KEY, "--partition-range", SMALL_RANGE)

    assert 0 == finished.returncode, finished.stderr[-3000:]
    assert 4 == len(records(slow))
    assert done == {path: path.read_bytes() for path in done}


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("WDS_CACHE", "/nowhere"),
        ("GOPEN_REWRITE", "/=/nowhere/"),
        ("USE_AIS_FOR", "file"),
        ("WDS_PYTORCH_WEIGHTS_ONLY", "0"),
        ("PIL_DEBUG", "1"),
    ],
)
def test_a_hostile_environment_changes_nothing(shard_set: ShardSet, monkeypatch, variable: str, value: str):
    """What redirects or loosens other libraries has no say in what a stream delivers."""
    stream = Stream(shard_set=shard_set, order=as_stored(shard_set.index), batch_size=20, image_size=32)
    (expected,) = [batch.images.numpy().copy() for batch in stream]

    monkeypatch.setenv(variable, value)

    np.testing.assert_array_equal(expected, next(iter(stream)).images.numpy())


@pytest.mark.parametrize("root", ["pipe:touch came", "shards::pipe:touch came", "{a..b}/$(touch came)"])
def test_a_path_is_a_path(tmp_path: Path, root: str):
    """Nothing that other libraries take for a command is one: it is a folder that does not exist."""
    finished = subprocess.run(
        [BIN / "tta-pipeline", "shard", root, "out", "--num-shards", "1"],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip

    assert 1 == finished.returncode
    assert root in finished.stderr
    assert not (tmp_path / "came").exists()


def test_the_clock_of_the_wall_times_nothing(slow: Project):
    """A time zone far away changes no duration, and records are ordered by number."""
    environment = {**slow.environment, "TZ": "Pacific/Kiritimati"}
    command = [
        BIN / "dagster", "asset", "materialize", "-m", "tta_pipeline.definitions", "--select", KEY,
        "--partition", "contrast|5",
    ]  # fmt: skip
    assert 0 == subprocess.run(command, env=environment, capture_output=True, check=False).returncode

    (path,) = records(slow)
    facts = json.loads(path.read_text())["record"]["facts"]
    assert 0 < facts["data_wait_s"] + facts["compute_s"] <= facts["wall_s"] < 60
    assert json.loads(path.read_text())["record"]["started_at"].endswith("+00:00")
