"""How many runs there are at once, what the doctor says of it, and whether a run that died is noticed."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pytest
import yaml
from dagster._core.launcher import WorkerStatus
from dagster._core.storage.tags import GRPC_INFO_TAG

from tta_pipeline.defs.history import open_history
from tta_pipeline.defs.resources.run_launcher import WatchfulRunLauncher
from tta_pipeline.defs.resources.run_queue import queue_limit
from tta_pipeline.domain.locations import Locations
from tta_pipeline.errors import SettingsError
from tta_pipeline.evaluation.device import count, devices
from tta_pipeline.evaluation.device.count import count_accelerators
from tta_pipeline.evaluation.device.devices import DeviceFacts
from tta_pipeline.extras.doctor.dagster_checks import check_run_limit
from tta_pipeline_tests.conftest import run_python, start_python

REPOSITORY = Path(__file__).parents[1]

OUR_QUEUE = (
    "{module: tta_pipeline.defs.resources.run_queue, class: DeviceRunCoordinator, config: {max_concurrent_runs: 4}}"
)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A Dagster home with the shipped settings, but a history of its own."""
    settings = yaml.safe_load((REPOSITORY / "dagster.yaml").read_text())
    for place in ("storage", "local_artifact_storage", "compute_logs"):
        del settings[place]
    (tmp_path / "dagster.yaml").write_text(yaml.safe_dump(settings))
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path))
    monkeypatch.delenv("TTA_CONCURRENT_RUNS", raising=False)
    return tmp_path


@pytest.mark.parametrize(
    ("files", "visible", "expected"),
    [
        ((), None, 0),
        ((), "0,1", 0),
        (("nvidia0", "nvidia1", "nvidia10", "nvidiactl", "nvidia-uvm"), None, 3),
        (("nvidia0", "nvidia1"), "", 0),
        (("nvidia0", "nvidia1"), "-1", 0),
        (("nvidia0", "nvidia1"), "1", 1),
        (("nvidia0", "nvidia1"), "1, 0", 2),
        (("nvidia0", "nvidia1"), "0,7,1", 1),
        (("nvidia0",), "MIG-a,MIG-b", 2),
        (("nvidia0", "nvidia1"), "GPU-8932f937,no", 1),
    ],
)
def test_devices_are_counted_as_cuda_counts_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: tuple[str, ...], visible: str | None, expected: int
):
    """Each file of the driver is one, and CUDA_VISIBLE_DEVICES counts up to the first entry that is none."""
    for name in files:
        (tmp_path / name).touch()
    if visible is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)

    assert expected == count_accelerators(tmp_path)


@pytest.mark.parametrize(("num_devices", "said", "expected"), [(0, "", 2), (1, "", 2), (8, "", 8), (8, "3", 3)])
def test_as_many_runs_start_as_there_are_devices(
    home: Path, monkeypatch: pytest.MonkeyPatch, num_devices: int, said: str, expected: int
):
    """Two at least, or as many as the environment says; limits by tag stay as they are."""
    monkeypatch.setattr(count, "count_accelerators", lambda: num_devices)
    monkeypatch.setenv("TTA_CONCURRENT_RUNS", said)

    with dg.DagsterInstance.from_config(str(home)) as instance:
        queue = instance.get_concurrency_config().run_queue_config

    assert expected == queue.max_concurrent_runs == queue_limit(home)
    assert ["dagster/partition"] == [limit["key"] for limit in queue.tag_concurrency_limits]


def test_a_number_in_dagster_yaml_comes_first(home: Path, monkeypatch: pytest.MonkeyPatch):
    """`max_concurrent_runs` in the section `concurrency` is Dagster's own setting."""
    monkeypatch.setenv("TTA_CONCURRENT_RUNS", "3")
    settings = yaml.safe_load((home / "dagster.yaml").read_text())
    settings["concurrency"]["runs"]["max_concurrent_runs"] = 5
    (home / "dagster.yaml").write_text(yaml.safe_dump(settings))

    assert 5 == queue_limit(home)


@pytest.mark.parametrize("said", ["0", "-1", "many", "1.5"])
def test_what_is_no_number_of_runs_is_an_error(home: Path, monkeypatch: pytest.MonkeyPatch, said: str):
    """It names the variable and what it is."""
    monkeypatch.setenv("TTA_CONCURRENT_RUNS", said)

    with pytest.raises(SettingsError, match=rf"TTA_CONCURRENT_RUNS .*{re.escape(repr(said))}"):
        queue_limit(home)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("storage: [", "while parsing"),
        ("run_coordinator: {module: nowhere, class: Queue}", "Couldn't import module nowhere"),
        (
            f"run_coordinator: {OUR_QUEUE}",
            'unexpected config entry "max_concurrent_runs"',
        ),
    ],
)
def test_a_faulty_dagster_yaml_is_one_line(home: Path, text: str, expected: str):
    """The doctor names the file and what Dagster says of it, without all that it would take."""
    (home / "dagster.yaml").write_text(text)

    (finding,) = check_run_limit(home, queue_limit)

    assert "fault" == finding.mark
    assert f"{home / 'dagster.yaml'}: " in finding.found
    assert expected in finding.found
    assert len(finding.found) < 400


@pytest.mark.parametrize(
    ("num_devices", "said", "mark", "words"),
    [
        (0, "", "ok", "at most 2 runs"),
        (2, "", "ok", "each leases one that no other run has"),
        (8, "2", "note", "the others stay idle"),
        (2, "6", "note", "unless streams_per_device lets them share it"),
    ],
)
def test_the_doctor_compares_runs_with_devices(
    home: Path, monkeypatch: pytest.MonkeyPatch, *, num_devices: int, said: str, mark: str, words: str
):
    """It says which are idle, or which runs wait, and how to change it."""
    facts = tuple(DeviceFacts(device=f"cuda:{n}", name="A", memory_bytes=None) for n in range(num_devices))
    monkeypatch.setattr(devices, "device_facts", lambda: facts)
    monkeypatch.setenv("TTA_CONCURRENT_RUNS", said)

    (finding,) = check_run_limit(home, queue_limit)

    assert mark == finding.mark
    assert words in finding.found
    assert f"{num_devices} device" in finding.found
    assert ("TTA_CONCURRENT_RUNS=" in finding.advice) == (mark == "note")


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    """A process that stands for that of a run."""
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) as process:
        yield process
        process.kill()


def health(home: Path, process_id: int, server: str = '{"host": "localhost", "socket": "/tmp/x"}') -> WorkerStatus:
    """Return what the launcher says of a run whose process told its number."""
    with dg.DagsterInstance.from_config(str(home)) as instance:
        run = dg.DagsterRun(job_name="job", tags={GRPC_INFO_TAG: server})
        instance.add_run(run)
        instance.report_engine_event(f"Started process for run (pid: {process_id}).", run)
        return instance.run_launcher.check_run_worker_health(run).status


def test_a_run_lives_as_long_as_its_process(home: Path, sleeper: subprocess.Popen[bytes]):
    """Also as a zombie that nobody has waited for it is dead."""
    assert WorkerStatus.RUNNING == health(home, sleeper.pid)

    sleeper.send_signal(signal.SIGKILL)
    os.waitid(os.P_PID, sleeper.pid, os.WEXITED | os.WNOWAIT)

    assert WorkerStatus.FAILED == health(home, sleeper.pid)
    sleeper.wait()
    assert WorkerStatus.FAILED == health(home, sleeper.pid)


def test_a_later_process_with_the_number_of_a_run_is_another(
    home: Path, sleeper: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
):
    """As after the machine was started again: it began after the run had told its number."""
    an_hour_ago = time.time() - 3600
    with monkeypatch.context() as earlier:
        earlier.setattr("dagster._core.instance.methods.event_methods.get_current_timestamp", lambda: an_hour_ago)
        assert WorkerStatus.FAILED == health(home, sleeper.pid)


def test_a_run_of_another_machine_is_left_to_it(home: Path):
    """Its processes are not here."""
    assert WorkerStatus.RUNNING == health(home, 2**22 - 1, '{"host": "node7", "port": 4000}')
    assert WorkerStatus.FAILED == health(home, 2**22 - 1)


KILLED = """
import os, signal, sys
from pathlib import Path
import dagster as dg
from tta_pipeline.defs.history import open_history
from tta_pipeline.defs.in_process import materialize_in_process
from tta_pipeline.domain.locations import Locations

@dg.asset
def one() -> None:
    os.kill(os.getpid(), signal.SIGKILL)

with open_history(Locations(root=Path(sys.argv[1]))) as instance:
    materialize_in_process(dg.Definitions(assets=[one]), [one.key], instance=instance, run_config={})
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
    """The next command, or the daemon, says that its process is gone; nothing starts it once more."""
    killed = run_python(KILLED, str(home))
    launcher = WatchfulRunLauncher()
    with dg.DagsterInstance.from_config(str(home)) as instance:
        launcher.register_instance(instance)
        (left,) = instance.get_runs()
        health = launcher.check_run_worker_health(left)
    with open_history(Locations(root=home)) as instance:
        (ended,) = instance.get_runs()

    assert -signal.SIGKILL == killed.returncode, killed.stderr[-2000:]
    assert dg.DagsterRunStatus.STARTED == left.status
    assert WorkerStatus.FAILED == health.status
    assert dg.DagsterRunStatus.FAILURE == ended.status
    assert "0" == ended.tags["dagster/max_retries"]


def test_commands_that_start_together_make_one_history(home: Path):
    """Dagster alone lets each make the tables, and all but one fail."""
    started = [start_python(OPENED, home, stdin=subprocess.PIPE, stdout=subprocess.PIPE) for _ in range(3)]
    for process in started:
        process.stdin.write("\n")
        process.stdin.flush()

    assert 3 * ["0\n"] == [process.communicate(timeout=100)[0] for process in started]
