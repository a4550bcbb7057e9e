"""How many runs there are at once, what the doctor says of it, and whether a run that died is noticed."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pytest
import yaml
from dagster._core.launcher import WorkerStatus

from tta_pipeline.defs.history import open_history
from tta_pipeline.defs.resources.run_launcher import WatchfulRunLauncher, tag_process
from tta_pipeline.domain.locations import Locations
from tta_pipeline.evaluation.device import devices
from tta_pipeline.evaluation.device.devices import DeviceFacts
from tta_pipeline.extras.doctor.dagster_checks import check_dagster
from tta_pipeline_tests.conftest import run_python, start_python

REPOSITORY = Path(__file__).parents[1]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A Dagster home with the shipped settings, but a history of its own."""
    settings = yaml.safe_load((REPOSITORY / "dagster.yaml").read_text())
    for place in ("storage", "local_artifact_storage", "compute_logs"):
        del settings[place]
    (tmp_path / "dagster.yaml").write_text(yaml.safe_dump(settings))
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize(
    ("num_devices", "limit", "mark", "words"),
    [
        (0, 2, "ok", "at most 2 runs"),
        (2, 2, "ok", "each leases a free device"),
        (8, 2, "note", "the others stay idle"),
        (2, 6, "note", "unless streams_per_device lets them share"),
        (2, -1, "note", "any number of runs"),
    ],
)
def test_the_doctor_compares_runs_with_devices(
    home: Path, monkeypatch: pytest.MonkeyPatch, *, num_devices: int, limit: int, mark: str, words: str
):
    """It says which are idle, or which runs wait, and what to set."""
    facts = tuple(DeviceFacts(device=f"cuda:{n}", name="A", memory_bytes=None) for n in range(num_devices))
    monkeypatch.setattr(devices, "device_facts", lambda: facts)
    settings = yaml.safe_load((home / "dagster.yaml").read_text())
    settings["concurrency"]["runs"]["max_concurrent_runs"] = limit
    (home / "dagster.yaml").write_text(yaml.safe_dump(settings))

    (_, finding) = check_dagster(home)

    assert mark == finding.mark
    assert words in finding.found
    assert f"{num_devices} device" in finding.found
    assert (f"max_concurrent_runs to {num_devices}" in finding.advice) == (mark == "note")


@pytest.mark.parametrize("text", ["storage: [", "concurrency: {runs: {max_concurrent_runs: {env: LIMIT}}}", "[]", ""])
def test_the_doctor_says_nothing_of_a_limit_that_it_cannot_read(home: Path, text: str):
    """A file that is not YAML is reported with Dagster's storage."""
    (home / "dagster.yaml").write_text(text)

    assert ["Dagster"] == [each.subject for each in check_dagster(home)]


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    """A process that stands for that of a run."""
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) as process:
        yield process
        process.kill()


def make_run(home: Path, process_id: int, monkeypatch: pytest.MonkeyPatch) -> dg.DagsterRun:
    """Return a run that the process has started."""
    run = dg.DagsterRun(job_name="job", status=dg.DagsterRunStatus.STARTED)
    with dg.DagsterInstance.from_config(str(home)) as instance, monkeypatch.context() as patched:
        patched.setattr(os, "getpid", lambda: process_id)
        instance.add_run(run)
        tag_process(instance, run)
        return instance.get_run_by_id(run.run_id)


def health(run: dg.DagsterRun) -> WorkerStatus:
    """Return what the launcher says of *run*."""
    return WatchfulRunLauncher().check_run_worker_health(run).status


def test_a_run_lives_as_long_as_its_process(
    home: Path, sleeper: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
):
    """Also as a zombie that nobody has waited for it is dead."""
    run = make_run(home, sleeper.pid, monkeypatch)
    assert WorkerStatus.RUNNING == health(run)

    sleeper.send_signal(signal.SIGKILL)
    os.waitid(os.P_PID, sleeper.pid, os.WEXITED | os.WNOWAIT)

    assert WorkerStatus.FAILED == health(run)
    sleeper.wait()
    assert WorkerStatus.FAILED == health(run)


def test_a_later_process_with_the_number_of_a_run_is_another(
    home: Path, sleeper: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
):
    """As after the machine was started again."""
    run = make_run(home, os.getpid(), monkeypatch)
    ((tag, process),) = run.tags.items()

    later = run.with_tags({tag: process.replace(f"/{os.getpid()}/", f"/{sleeper.pid}/")})

    assert WorkerStatus.FAILED == health(later)


def test_a_run_that_repeats_a_killed_one_is_alive(
    home: Path, sleeper: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
):
    """Dagster copies all tags; until it has its own, nothing is known of its process."""
    killed = make_run(home, sleeper.pid, monkeypatch)
    sleeper.kill()
    sleeper.wait()

    assert WorkerStatus.RUNNING == health(dg.DagsterRun(job_name="job", tags=killed.tags))


def test_a_run_of_another_machine_is_left_to_it(
    home: Path, sleeper: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
):
    """Its processes are not here."""
    with monkeypatch.context() as there:
        there.setattr(socket, "gethostname", lambda: "node7")
        run = make_run(home, sleeper.pid, there)
    sleeper.kill()
    sleeper.wait()

    assert WorkerStatus.RUNNING == health(run)


KILLED = """
import os, signal, sys
from pathlib import Path
import dagster as dg
from tta_pipeline.defs.history import open_history
from tta_pipeline.defs.in_process import materialize_in_process
from tta_pipeline.defs.resources import ShardStore
from tta_pipeline.domain.locations import Locations

@dg.asset
def one(store: ShardStore) -> None:
    os.kill(os.getpid(), signal.SIGKILL)

with open_history(Locations(root=Path(sys.argv[1]))) as instance:
    definitions = dg.Definitions(assets=[one], resources={"store": ShardStore()})
    materialize_in_process(definitions, [one.key], instance=instance, run_config={})
"""
OPENED = """
import sys
from pathlib import Path
from tta_pipeline.defs.history import open_history
from tta_pipeline.domain.locations import Locations

sys.stdin.readline()
with open_history(Locations(root=Path(sys.argv[1]))) as instance:
    print(instance.get_runs_count())
"""


def test_a_command_that_was_killed_leaves_no_run_in_the_queue(home: Path):
    """The next command, or the daemon, says that its process is gone."""
    killed = run_python(KILLED, str(home))
    with dg.DagsterInstance.from_config(str(home)) as instance:
        (left,) = instance.get_runs()
    with open_history(Locations(root=home)) as instance:
        (ended,) = instance.get_runs()

    assert -signal.SIGKILL == killed.returncode, killed.stderr[-2000:]
    assert dg.DagsterRunStatus.STARTED == left.status
    assert WorkerStatus.FAILED == health(left)
    assert dg.DagsterRunStatus.FAILURE == ended.status


def test_commands_that_start_together_make_one_history(home: Path):
    """Dagster alone lets each make the tables, and all but one fail."""
    started = [start_python(OPENED, home, stdin=subprocess.PIPE, stdout=subprocess.PIPE) for _ in range(3)]
    for process in started:
        process.stdin.write("\n")
        process.stdin.flush()

    assert 3 * ["0\n"] == [process.communicate(timeout=100)[0] for process in started]
