"""Runs as processes of this machine: a killed run is noticed, even if its parent process is gone too."""

import os
import socket
from pathlib import Path

import dagster as dg
from dagster._core.launcher import CheckRunHealthResult, WorkerStatus

_PROCESS = ".dagster/tta_pipeline_process"
"""Tag of a run with its process, as `<host>/<process ID>/<start>/<run ID>`; a run that repeats it has a copy.

The web UI hides it by its prefix.
"""


class WatchfulRunLauncher(dg.DefaultRunLauncher):
    """Dagster's launcher for one machine, with a health check of its runs; name it in `dagster.yaml`.

    The code server that started a run reports when the run's process dies. If the server dies too, as in a crash of the
    machine, or if a command made the run, it would stay "started" forever, and keep its place in the queue. With the
    health check, Dagster's daemon notices, marks the run as failed, and retries it once.
    """

    @property
    def supports_check_run_worker_health(self) -> bool:
        """True."""
        return True

    def check_run_worker_health(self, run: dg.DagsterRun) -> CheckRunHealthResult:
        """Return that *run* is running, unless its process was on this machine and no longer exists."""
        if _was_killed(run):
            return CheckRunHealthResult(WorkerStatus.FAILED, "its process does not exist any more")
        return CheckRunHealthResult(WorkerStatus.RUNNING)


def tag_process(instance: dg.DagsterInstance, run: dg.DagsterRun) -> None:
    """Tag *run* with this process, so that the process's death is noticed."""
    process = f"{socket.gethostname()}/{os.getpid()}/{_start_of(os.getpid())}/{run.run_id}"
    instance.add_run_tags(run.run_id, {_PROCESS: process})


def end_killed_runs(instance: dg.DagsterInstance) -> None:
    """Mark as failed the runs whose process was killed: they would keep their place in the queue."""
    under_way = dg.RunsFilter(statuses=[dg.DagsterRunStatus.STARTED, dg.DagsterRunStatus.CANCELING])
    for run in instance.get_runs(under_way):
        if _was_killed(run):
            instance.report_run_failed(run, "its process does not exist any more")


def _was_killed(run: dg.DagsterRun) -> bool:
    host, process_id, start, run_id = run.tags.get(_PROCESS, "///").split("/")
    return (host, run_id) == (socket.gethostname(), run.run_id) and _start_of(int(process_id)) != start


def _start_of(process_id: int) -> str:
    """Return when the process started, in ticks since the boot; empty if it is dead, or without /proc."""
    try:
        state, *fields = Path(f"/proc/{process_id}/stat").read_text().rpartition(") ")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return ""
    return "" if state == "Z" else fields[18]
