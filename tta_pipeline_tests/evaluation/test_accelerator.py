"""A device is used by one run at a time, however the run before it ended."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tta_pipeline.errors import EvaluationError
from tta_pipeline.evaluation.accelerator import leased, leased_device

HOLDER = """
import sys, time
from pathlib import Path
from tta_pipeline.evaluation.accelerator import leased
with leased(sys.argv[2:], print, folder=Path(sys.argv[1])) as name:
    print(name, flush=True)
    time.sleep(100)
"""


def holder(folder: Path, *names: str) -> subprocess.Popen[str]:
    """Start a process that takes a lease and keeps it."""
    return subprocess.Popen([sys.executable, "-c", HOLDER, folder, *names], stdout=subprocess.PIPE, text=True)


def test_runs_get_different_devices(tmp_path: Path):
    """A second process is given the second one."""
    with leased(["a", "b"], print, folder=tmp_path) as mine, holder(tmp_path, "a", "b") as other:
        assert ("a", "b\n") == (mine, other.stdout.readline())
        other.kill()


def test_a_run_waits_and_a_killed_run_holds_nothing(tmp_path: Path):
    """It says what it waits for, and gets the device at once when its holder is killed."""
    told = []

    def kill(line: str) -> None:
        told.append(line)
        other.kill()

    with holder(tmp_path, "a") as other:
        assert "a\n" == other.stdout.readline()
        with leased(["a"], kill, folder=tmp_path) as name:
            assert "a" == name
    assert ["waiting for one of a; each is used by another run"] == told


def test_a_device_that_is_not_there_is_refused():
    """The message names what there is."""
    with leased_device("cpu", print) as device:
        assert torch.device("cpu") == device
    with (
        pytest.raises(EvaluationError, match="device is 'cuda:99'; expected auto, cpu or one of"),
        leased_device("cuda:99", print),
    ):
        pass
