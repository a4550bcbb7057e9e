"""Pieces of work are done in other processes as they would be in this one, and those processes never outlive it."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tta_pipeline.errors import ImagesError, WorkerError
from tta_pipeline.util import processes
from tta_pipeline.util.processes import Workers
from tta_pipeline_tests.conftest import start_python
from tta_pipeline_tests.work import refuse, work


@pytest.fixture(autouse=True)
def _no_forks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Start Python for each process, as everywhere but in other tests."""
    monkeypatch.setattr(processes, "_COMMAND", (sys.executable, *processes._COMMAND[1:]))


def test_results_come_in_order_from_other_processes():
    """What the work prints does not disturb them."""
    with Workers(2) as workers:
        results = list(workers.map(work, range(20)))

    assert [number**2 for number in range(20)] == [square for square, _ in results]
    assert os.getpid() not in {pid for _, pid in results}


def test_a_question_is_no_work():
    """Only expected work decides whether processes are worth starting, however often one asks."""
    half = 2**24
    with Workers(2) as workers, Workers(1) as alone:
        assert [False] * 3 == [workers.are_worth_starting(half) for _ in range(3)]
        for each in (workers, alone):
            each.expect(half)
        assert [False, True] == [workers.are_worth_starting(more) for more in (0, half)]
        assert not alone.are_worth_starting(2**40)


def test_an_error_is_raised_where_the_work_was_asked_for():
    """And the process does further work."""
    with Workers(1) as workers:
        with pytest.raises(ImagesError, match="fog"):
            list(workers.map(refuse, [Path("fog")]))
        assert 9 == workers.submit(work, 3).result()[0]


def test_a_process_that_is_killed_is_an_error():
    """Of the piece it worked on; nothing waits for it for ever."""
    with Workers(1) as workers:
        _, pid = workers.submit(work, 1).result()
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(WorkerError, match=rf"\b{pid}\b.* -9\b"):
            workers.submit(work, 2).result()


def test_processes_end_with_the_block():
    """Also those that have work."""
    with Workers(2) as workers:
        _, pid = workers.submit(work, 1).result()
        workers.submit(time.sleep, 100)

    assert not Path(f"/proc/{pid}").exists()


PARENT = """
from tta_pipeline.util.processes import Workers
from tta_pipeline_tests.work import work
import time
with Workers(1) as workers:
    print(workers.submit(work, 1).result()[1], flush=True)
    time.sleep(100)
"""


PARENT_OF_WORK = """
from tta_pipeline.util.processes import Workers
from tta_pipeline_tests.work import work
import time
with Workers(1) as workers:
    workers.submit(work, 1).result()
    workers.submit(time.sleep, 1)
    time.sleep(0.5)
    print("working", flush=True)
    time.sleep(100)
"""


def test_processes_end_when_their_parent_is_killed():
    """Nobody is there to end them then; they notice."""
    with start_python(PARENT, stdout=subprocess.PIPE) as parent:
        worker = Path("/proc", parent.stdout.readline().strip())
        assert worker.exists()
        parent.kill()
    until = time.monotonic() + 20
    while worker.exists() and "zombie" not in (worker / "status").read_text() and time.monotonic() < until:
        time.sleep(0.05)

    assert not worker.exists() or "zombie" in (worker / "status").read_text()


def test_processes_end_without_a_word_when_their_parent_is_killed_during_work():
    """Nobody is there to take the answer."""
    with start_python(PARENT_OF_WORK, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as parent:
        parent.stdout.readline()
        parent.kill()
        said = parent.stderr.read()  # until the worker has closed it too

    assert "Traceback" not in said
