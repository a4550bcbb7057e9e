"""Runs as processes of this machine whose death is noticed, also the one that nobody is left to tell of."""

import json
import os
import re
import time
from pathlib import Path

import dagster as dg
from dagster._core.launcher import CheckRunHealthResult, DefaultRunLauncher, WorkerStatus
from dagster._core.storage.tags import GRPC_INFO_TAG

_STARTED = re.compile(r"Started process for run \(pid: (\d+)\)")
_CLOCKS_AGREE_WITHIN_S = 60.0
_HERE = ("localhost", "127.0.0.1", "::1")


class WatchfulRunLauncher(DefaultRunLauncher):
    """Dagster's launcher for one machine, which `dagster.yaml` names, with an answer to whether a run is still alive.

    The code server that has started a run tells when its process dies. If that server dies too, as with the whole
    machine, the run would stay "started" for ever, and keep its place in the queue. With an answer Dagster's daemon
    sees it, at its next look, and the run is marked as failed and tried once more.
    """

    @property
    def supports_check_run_worker_health(self) -> bool:
        """True."""
        return True

    def check_run_worker_health(self, run: dg.DagsterRun) -> CheckRunHealthResult:
        """Return that *run* is running, unless the process that it told of is gone from this machine."""
        process = self._process(run)
        if process is None or _is_running(*process):
            return CheckRunHealthResult(WorkerStatus.RUNNING)
        return CheckRunHealthResult(WorkerStatus.FAILED, f"process {process[0]} does not exist any more")

    def _process(self, run: dg.DagsterRun) -> tuple[int, float] | None:
        """Return the number of the process of *run*, and the time at which it was there; None if it is not here."""
        server = json.loads(run.tags.get(GRPC_INFO_TAG, "{}"))
        if not server.get("socket") and server.get("host") not in _HERE:
            return None
        told = self._instance.all_logs(run.run_id, of_type=dg.DagsterEventType.ENGINE_EVENT)
        found = [(match, entry.timestamp) for entry in told if (match := _STARTED.search(entry.message))]
        return (int(found[-1][0][1]), found[-1][1]) if found else None


def _is_running(process_id: int, seen_at: float) -> bool:
    """Return whether the process is alive, and not a later one with its number."""
    try:
        state, *fields = Path(f"/proc/{process_id}/stat").read_text().rpartition(") ")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return not Path("/proc/self").exists()  # a system without /proc says nothing
    started_at = _booted_at() + int(fields[18]) / os.sysconf("SC_CLK_TCK")
    return state != "Z" and started_at < seen_at + _CLOCKS_AGREE_WITHIN_S


def _booted_at() -> float:
    """Return the time at which this machine was started, in seconds since 1970."""
    return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
