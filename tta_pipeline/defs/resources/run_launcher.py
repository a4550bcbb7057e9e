"""Runs as processes of this machine: their death is noticed even when the process that started them is gone."""

import json
import os
import re
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import dagster as dg

from tta_pipeline.defs.run_tags import GRPC_INFO, MAX_RETRIES

if TYPE_CHECKING:
    from tta_pipeline.defs.private_dagster import CheckRunHealthResult

_PROCESS = "tta_pipeline/process"
"""Tag with the process of a run that a command makes, as `<process ID>@<host>`."""
_STARTED = re.compile(r"Started process for run \(pid: (\d+)\)")
_CLOCKS_AGREE_WITHIN_S = 60.0
_LOCAL_HOSTS = ("localhost", "127.0.0.1", "::1")


class WatchfulRunLauncher(dg.DefaultRunLauncher):
    """Dagster's launcher for one machine, to be named in `dagster.yaml`, with a health check of its runs.

    The code server that started a run reports when the run's process dies. If the server dies too, as in a crash of the
    machine, the run would stay "started" for ever, and keep its place in the queue. With the health check Dagster's
    daemon notices at its next check, marks the run as failed, and retries it once.
    """

    @property
    def supports_check_run_worker_health(self) -> bool:
        """True."""
        return True

    def check_run_worker_health(self, run: dg.DagsterRun) -> "CheckRunHealthResult":
        """Return that *run* is running, unless its process, in its tag or log, no longer exists on this machine."""
        from tta_pipeline.defs.private_dagster import CheckRunHealthResult, WorkerStatus

        process = _process_of_command(self._instance, run) or self._find_process(run)
        if process is None or _is_running(*process):
            return CheckRunHealthResult(WorkerStatus.RUNNING)
        return CheckRunHealthResult(WorkerStatus.FAILED, f"process {process[0]} does not exist any more")

    def _find_process(self, run: dg.DagsterRun) -> tuple[int, float] | None:
        """Return the process ID of *run* and the time of its start event; None if unknown or on another machine."""
        server = json.loads(run.tags.get(GRPC_INFO, "{}"))
        if not server.get("socket") and server.get("host") not in _LOCAL_HOSTS:
            return None
        told = self._instance.all_logs(run.run_id, of_type=dg.DagsterEventType.ENGINE_EVENT)
        found = [(match, entry.timestamp) for entry in told if (match := _STARTED.search(entry.message))]
        return (int(found[-1][0][1]), found[-1][1]) if found else None


def tags_of_this_process() -> Mapping[str, str]:
    """Return the tags of a run in this process: by them its death is noticed, and it is not started once more."""
    return {_PROCESS: f"{os.getpid()}@{socket.gethostname()}", MAX_RETRIES: "0"}


def end_dead_runs(instance: dg.DagsterInstance) -> None:
    """Mark as failed the runs of commands of this machine whose process was killed: they would keep their place."""
    under_way = dg.RunsFilter(statuses=[dg.DagsterRunStatus.STARTING, dg.DagsterRunStatus.STARTED])
    for run in instance.get_runs(under_way):
        process = _process_of_command(instance, run)
        if process and not _is_running(*process):
            instance.report_run_failed(run, f"process {process[0]} does not exist any more")


def _process_of_command(instance: dg.DagsterInstance, run: dg.DagsterRun) -> tuple[int, float] | None:
    """Return the process of *run*, which a command made, and a time when it ran; None for other runs and machines."""
    process_id, _, host = run.tags.get(_PROCESS, "").partition("@")
    record = instance.get_run_record_by_id(run.run_id) if host == socket.gethostname() else None
    return (int(process_id), record.create_timestamp.timestamp()) if record else None


def _is_running(process_id: int, seen_at: float) -> bool:
    """Return whether the process is alive, and is not a later process with the same ID."""
    try:
        state, *fields = Path(f"/proc/{process_id}/stat").read_text().rpartition(") ")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return not Path("/proc/self").exists()  # without /proc, nothing is known: assume that it runs
    started_at = _boot_time() + int(fields[18]) / os.sysconf("SC_CLK_TCK")
    return state != "Z" and started_at < seen_at + _CLOCKS_AGREE_WITHIN_S


def _boot_time() -> float:
    """Return the boot time of this machine, in seconds since 1970."""
    return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
