"""Ctrl-C ends a command at once, wherever it lands."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tta_pipeline_tests.conftest import Project, copied_results, launcher
from tta_pipeline_tests.interrupts import interruptible
from tta_pipeline_tests.result_paths import remove_results

RUN = """
import atexit, os, signal, sys
import dagster as dg
from tta_pipeline.__main__ import main

where, handle, seen = sys.argv[1], dg.DagsterInstance.handle_new_event, []

def handle_and_interrupt(self, event, *arguments, **options):
    seen.append(event)
    kind = event.dagster_event.event_type.name if event.dagster_event else ""
    if where in (str(len(seen)), kind):
        os.kill(os.getpid(), signal.SIGINT)
    handle(self, event, *arguments, **options)

dg.DagsterInstance.handle_new_event = handle_and_interrupt
sys.argv[1:] = ["run", "small", "--experiment", "norm", "--cell", "contrast|3", *sys.argv[2:]]
atexit.register(lambda: print("events", len(seen), file=sys.stderr))
main()
"""
"""A run that receives SIGINT when Dagster is about to write its n-th event, or one of a type."""
EVALUATES = ("--part", "1/1")
"""Options of a run without the report, which takes most of its time."""


@pytest.fixture
def project(sweep: Project, tmp_path: Path) -> Project:
    """Shards, model and results of the small benchmark."""
    return copied_results(sweep, tmp_path)


def interrupted_at(project: Project, where: int | str, *options: str) -> subprocess.CompletedProcess[str]:
    """Return how a run ended that had a cell left to evaluate, and was interrupted at the event *where*."""
    remove_results(project.locations.root, "small", "norm", "contrast-3")
    return launcher().run(["python", "-c", RUN, str(where), *options], project.environment, timeout_s=600)


def num_events(ended: subprocess.CompletedProcess[str]) -> int:
    """Return how many events Dagster wrote."""
    assert 0 == ended.returncode, ended.stderr
    return int(ended.stderr.rpartition("events ")[2])


def was_noticed(ended: subprocess.CompletedProcess[str]) -> bool:
    """Return whether the command ended by SIGINT, and said so in one line."""
    is_said = 1 == ended.stderr.count("interrupted") and not {"Traceback", "ERROR"} & set(ended.stderr.split())
    return is_said and (ended.returncode == 128 + signal.SIGINT)


def test_an_interrupt_at_the_edge_of_a_run_is_not_lost(project: Project):
    """Dagster only notes one before the first step and after the last; the command ends all the same.

    One within a step is no failure of the step; after one at the end of a run, the next run does not begin.
    """
    ended = {where: interrupted_at(project, where, *EVALUATES) for where in (1, "STEP_OUTPUT")}
    ended["RUN_SUCCESS"] = interrupted_at(project, "RUN_SUCCESS")

    assert dict.fromkeys(ended, True) == {where: was_noticed(each) for where, each in ended.items()}
    assert "1 of 2: " in ended["RUN_SUCCESS"].stderr
    assert "2 of 2: " not in ended["RUN_SUCCESS"].stderr


def test_an_interrupt_while_the_command_is_imported_ends_it():
    """Before any verb could look for it."""
    program = (
        "import os, signal, sys\n"
        "class Interrupts:\n"
        "    def find_spec(self, name, *_):\n"
        "        if name == 'tta_pipeline.cli': os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.meta_path.insert(0, Interrupts())\n"
        "from tta_pipeline.__main__ import main\n"
        "main()\n"
    )
    with interruptible():
        ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)

    assert (128 + signal.SIGINT, ["interrupted; what is finished is kept"]) == (
        ended.returncode, ended.stderr.splitlines()
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_an_interrupt_at_any_event_of_a_run_is_noticed(project: Project):
    """While a cell is evaluated, between the assets, and while the report is written."""
    last = num_events(interrupted_at(project, 0))

    assert [] == [number for number in range(1, last + 1) if not was_noticed(interrupted_at(project, number))]
