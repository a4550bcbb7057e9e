"""A real Ray cluster of one node on this machine, with two fake devices."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Self

from tta_pipeline_tests.ports import free_ports

NUM_DEVICES = 2
_PORTS = ("port", "dashboard-port", "ray-client-server-port", "dashboard-agent-listen-port", "metrics-export-port")
_WORKER_PORTS = ("--min-worker-port=0", "--max-worker-port=0")  # any that are free
_START_S = 120


def why_not() -> str:
    """Return the reason why Ray cannot be started here, or an empty string if it can."""
    missing = [name for name in ("ray", "dagster_ray") if find_spec(name) is None]
    return f"{', '.join(missing)} is not installed (pip install -c constraints.txt -e '.[dev,ray]')" if missing else ""


class RayHead:
    """A head node that runs during the block; no process of it is left afterwards."""

    def __init__(self, environment: dict[str, str], log: Path) -> None:
        self.ports = dict(zip(_PORTS, free_ports(len(_PORTS)), strict=True))
        # Below the system's temporary folder: the path of a Unix socket has at most 107 characters.
        self.folder = Path(tempfile.mkdtemp(prefix="ray-"))
        self._environment = environment
        self._log = log

    @property
    def address(self) -> str:
        """Address of the dashboard, to which jobs are submitted."""
        return f"http://127.0.0.1:{self.ports['dashboard-port']}"

    def __enter__(self) -> Self:
        command = [
            *(sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--num-cpus=2"),
            *(f"--num-gpus={NUM_DEVICES}", "--dashboard-host=127.0.0.1", "--disable-usage-stats", "--block"),
            *(f"--temp-dir={self.folder}", *_WORKER_PORTS),
            *(f"--{name}={port}" for name, port in self.ports.items()),
        ]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                command, env=self._environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        try:
            self._wait()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._process.send_signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(30)
        for process_id in self.process_ids():
            with suppress(ProcessLookupError):
                os.kill(process_id, signal.SIGKILL)
        self._process.wait(30)
        shutil.rmtree(self.folder, ignore_errors=True)

    def process_ids(self) -> list[int]:
        """Return every process of the cluster, also those whose parents have ended."""
        own = str(self.folder).encode()
        return [int(path.name) for path in Path("/proc").glob("[0-9]*") if own in _command_and_environment(path)]

    def _wait(self) -> None:
        until = time.monotonic() + _START_S
        while self._process.poll() is None and time.monotonic() < until:
            with suppress(OSError), socket.create_connection(("127.0.0.1", self.ports["dashboard-port"]), 1):
                return
            time.sleep(0.2)
        raise TimeoutError(f"found no dashboard of Ray after {_START_S} s:\n{self._log.read_text()[-3000:]}")


def _command_and_environment(process: Path) -> bytes:
    with suppress(OSError):
        return (process / "cmdline").read_bytes() + (process / "environ").read_bytes()
    return b""
