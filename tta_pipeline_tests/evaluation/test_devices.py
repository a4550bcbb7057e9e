"""A device is used by one run at a time, however the run before it ended."""

import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace

import pytest
import torch

from tta_pipeline.errors import EvaluationError
from tta_pipeline.evaluation.device.arithmetic import arithmetic, arithmetic_flags
from tta_pipeline.evaluation.device.devices import require_float64
from tta_pipeline.evaluation.device.leases import leased, leased_device
from tta_pipeline.evaluation.device.memory import peak_memory_gib
from tta_pipeline.evaluation.machine import default_decode_threads
from tta_pipeline_tests.conftest import Project


@contextmanager
def holder(folder: Path, *names: str, user: int | None = None) -> Iterator[tuple[str, int]]:
    """Yield the lease that a process of its own takes and keeps, and the id of the process."""
    said, say = os.pipe()
    child = os.fork()
    if child == 0:
        with suppress(BaseException):
            if user is not None:
                os.setuid(user)
            with leased(names, print, folder=folder) as name:
                os.write(say, name.encode())
                signal.pause()
        os._exit(1)
    try:
        os.close(say)
        yield os.read(said, 100).decode(), child
    finally:
        os.close(said)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_runs_get_different_devices(tmp_path: Path):
    """A second process is given the second one."""
    with leased(["a", "b"], print, folder=tmp_path) as mine, holder(tmp_path, "a", "b") as (others, _):
        assert ("a", "b") == (mine, others)


def test_a_run_waits_and_a_killed_run_holds_nothing(tmp_path: Path):
    """It says what it waits for, and gets the device at once when its holder is killed."""
    told = []

    def kill(line: str) -> None:
        told.append(line)
        os.kill(process_id, signal.SIGKILL)

    with holder(tmp_path, "a") as (held, process_id):
        assert "a" == held
        with leased(["a"], kill, folder=tmp_path) as name:
            assert "a" == name
    assert ["waiting for one of a; each is used by another run"] == told


def test_runs_that_share_get_the_device_that_has_fewest(tmp_path: Path):
    """Slot by slot; the fifth run on two devices with two slots each waits."""
    told = []
    with ExitStack() as stack:
        names = [stack.enter_context(leased(["a", "b"], print, num_slots=2, folder=tmp_path)) for _ in range(4)]

        def leave(line: str) -> None:
            told.append(line)
            stack.close()

        with leased(["a", "b"], leave, num_slots=2, folder=tmp_path) as last:
            pass
    assert ["a", "b", "a", "b"] == names
    assert ("a", 1) == (last, len(told))


def test_a_run_that_shares_holds_only_the_device_that_it_got(tmp_path: Path):
    """Another, whose slots it found taken, is free for a run of its own as soon as its holders leave."""
    with ExitStack() as holders:
        for _ in range(2):
            holders.enter_context(leased(["a"], print, num_slots=2, folder=tmp_path))
        with leased(["a", "b"], print, num_slots=2, folder=tmp_path) as mine:
            holders.close()
            with leased(["a"], pytest.fail, folder=tmp_path) as alone:
                assert ("b", "a") == (mine, alone)


def test_a_lease_ends_although_a_child_of_its_holder_lives_on(tmp_path: Path):
    """A process that was forked meanwhile has the file of the lock open, too."""
    with leased(["a"], print, folder=tmp_path):
        child = os.fork()
        if child == 0:
            signal.pause()
    try:
        with leased(["a"], pytest.fail, folder=tmp_path) as name:
            assert "a" == name
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


@pytest.mark.parametrize(("held", "wanted"), [(1, 2), (2, 1), (1, 1)])
def test_a_run_that_does_not_share_has_its_device_alone(tmp_path: Path, held: int, wanted: int):
    """Whether it was there first or comes later."""
    told = []
    with ExitStack() as stack:
        stack.enter_context(leased(["a"], print, num_slots=held, folder=tmp_path))

        def leave(line: str) -> None:
            told.append(line)
            stack.close()

        with leased(["a"], leave, num_slots=wanted, folder=tmp_path):
            pass
    assert 1 == len(told)


def test_a_device_that_is_not_there_is_refused():
    """The message names what there is."""
    with leased_device("cpu", print) as device:
        assert torch.device("cpu") == device
    with (
        pytest.raises(EvaluationError, match=r"'cuda:99'.*\bauto or cpu\b"),
        leased_device("cuda:99", print),
    ):
        pass


def test_an_absent_device_ends_a_run_before_anything_is_made(project: Project):
    """One line says it, and not each cell after the images and the model were made."""
    finished = project.run("tta-pipeline", "run", "digits_c", "--device", "xpu:7")

    assert 1 == finished.returncode
    assert "'xpu:7'" in finished.stderr
    assert not project.locations.root.exists()


@pytest.mark.skipif(os.getuid() != 0, reason="needs root, to become another user")
def test_a_device_that_another_user_had_can_be_had():
    """Whatever the umask of the one who created the lock."""
    with TemporaryDirectory() as folder:
        Path(folder).chmod(0o1777)  # as /tmp is
        before = os.umask(0o077)
        try:
            with leased(["a"], print, folder=Path(folder)):
                pass
        finally:
            os.umask(before)

        with holder(Path(folder), "a", user=65534) as (name, _):
            assert "a" == name


def test_fp32_is_exact_and_tf32_is_asked_for():
    """On CUDA, where torch rounds the factors of convolutions unless it is told not to; afterwards all is as before."""
    before = arithmetic_flags()
    assert "tf32" == before["cudnn_conv"]

    with arithmetic("cuda", "fp32"):
        assert ("ieee", "ieee") == tuple(arithmetic_flags()[name] for name in ("cuda_matmul", "cudnn_conv"))
    with arithmetic("cuda", "tf32"):
        assert ("tf32", "tf32") == tuple(arithmetic_flags()[name] for name in ("cuda_matmul", "cudnn_conv"))
    with arithmetic("cpu", "fp32"):
        assert before == arithmetic_flags()

    assert before == arithmetic_flags()


def test_tf32_is_refused_where_there_is_none():
    """A CPU has none."""
    with (
        pytest.raises(EvaluationError, match=r"\btf32\b.*\bcpu\b.*\bfp32\b.*\bbf16\b"),
        arithmetic("cpu", "tf32"),
    ):
        pass


def test_a_precision_that_autocast_leaves_out_is_refused():
    """Torch would only warn, and compute in float32; a device without values has no autocast at all."""
    with (
        pytest.raises(EvaluationError, match=r"\bbf16\b.*\bmeta\b.*\bfp32\b"),
        arithmetic("meta", "bf16"),
    ):
        pass
    with arithmetic("cpu", "bf16"):
        pass


def test_a_device_without_float64_is_refused_by_name():
    """Where a training would add up its losses; no machine of the project has one, so torch is not asked."""
    require_float64(torch.device("cpu"))
    with pytest.raises(EvaluationError, match=r"\bmps:0\b.*\bfloat64\b.*device: cpu"):
        require_float64(torch.device("mps", 0))


def test_deterministic_algorithms_are_on_while_they_are_asked_for():
    """And off afterwards."""
    with arithmetic("cpu", "fp32", deterministic=True):
        assert torch.are_deterministic_algorithms_enabled()

    assert not torch.are_deterministic_algorithms_enabled()


@pytest.mark.parametrize(("num_cores", "num_processes", "num_threads"), [(128, 1, 8), (16, 4, 4), (2, 1, 2), (2, 8, 1)])
def test_decoding_threads_are_few_and_shared_by_processes(
    num_cores: int, num_processes: int, num_threads: int, monkeypatch: pytest.MonkeyPatch
):
    """More than 8 wait for each other; processes of one launcher get equal parts of the cores."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(num_cores)))
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(num_processes))

    assert num_threads == default_decode_threads()


def test_the_peak_of_memory_is_in_gib(monkeypatch: pytest.MonkeyPatch):
    """3 GiB are 3; most machines of the project have no accelerator, so torch does not measure it."""
    measuring = SimpleNamespace(max_memory_allocated=lambda _: 3 * 2**30)
    monkeypatch.setattr(torch, "get_device_module", lambda _: measuring)

    assert peak_memory_gib(torch.device("cuda")) == 3.0
