"""A real Slurm of one node with two fake devices: Debian's packages `slurm-wlm` and `munge`, started as root.

Its commands find it by the environment that `SlurmNode.environment` returns.
"""

import os
import shutil
import socket
import stat
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Self

from tta_pipeline_tests.ports import free_ports

NUM_DEVICES = 2
_PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch")
_START_S = 60
_CONF = """ClusterName=tests
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ctld_port}
SlurmdPort={slurmd_port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
CredType=cred/munge
CryptoType=crypto/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
GresTypes=gpu
JobRequeue=1
KillWait=5
SlurmctldTimeout=30
SlurmdTimeout=15
ReturnToService=1
SchedulerParameters=sched_interval=2,sched_min_interval=100000
NodeName={host} NodeAddr=127.0.0.1 CPUs={cpus} RealMemory=1000 Gres=gpu:{devices} State=UNKNOWN
PartitionName=all Nodes={host} Default=YES MaxTime=INFINITE State=UP OverSubscribe=NO
"""


def why_not() -> str:
    """Return the reason why Slurm cannot be started here, or an empty string if it can."""
    missing = [
        program for program in _PROGRAMS if shutil.which(program, path=f"{os.environ['PATH']}:/usr/sbin") is None
    ]
    if missing:
        return f"{', '.join(missing)} is not installed (Debian: slurm-wlm munge)"
    return "" if os.getuid() == 0 else "slurmd needs root"


class SlurmNode:
    """A controller and a node that run during the block."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.host = socket.gethostname().partition(".")[0]
        self._processes: list[subprocess.Popen[bytes]] = []

    @property
    def environment(self) -> dict[str, str]:
        """Environment in which Slurm's commands find this node."""
        return {**os.environ, "SLURM_CONF": str(self.folder / "slurm.conf"), "PATH": f"{os.environ['PATH']}:/usr/sbin"}

    def __enter__(self) -> Self:
        for name in ("state", "spool"):
            (self.folder / name).mkdir()
        self._write_configuration()
        try:
            self._start("munged", "--foreground", "--force", f"--socket={self.folder}/munge.socket",
                        f"--key-file={self.folder}/munge.key", f"--pid-file={self.folder}/munged.pid",
                        f"--log-file={self.folder}/munged.log", f"--seed-file={self.folder}/munged.seed")  # fmt: skip
            self._wait_for("the socket of munged", (self.folder / "munge.socket").exists)
            self._start("slurmctld", "-D", "-f", str(self.folder / "slurm.conf"))
            self.start_node_daemon()
            self._wait_for(
                "an idle node", lambda: "idle" in self.run("sinfo", "--noheader", "--format=%T", check=False)
            )
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.run("scancel", "--user=root", check=False)
        for process in reversed(self._processes):
            process.terminate()
        for process in reversed(self._processes):
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()

    def run(self, *command: str, check: bool = True) -> str:
        """Run a command of Slurm's, and return its output."""
        done = subprocess.run(command, check=False, env=self.environment, capture_output=True, text=True, timeout=60)
        if check and done.returncode:
            raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}: {done.stderr.strip()}")
        return done.stdout

    def start_node_daemon(self) -> None:
        """Start the daemon of the node."""
        self._start("slurmd", "-D", "-f", str(self.folder / "slurm.conf"))

    def kill_node_daemon(self) -> None:
        """Kill the daemon of the node, which was started last; the jobs on it live on."""
        self._processes[-1].kill()
        self._processes.pop().wait()

    def _start(self, *command: str) -> None:
        with (self.folder / f"{command[0]}.out").open("wb") as log:
            self._processes.append(subprocess.Popen(command, env=self.environment, stdout=log, stderr=log))

    def _wait_for(self, what: str, is_there: Callable[[], bool]) -> None:
        until = time.monotonic() + _START_S
        while not is_there():
            if time.monotonic() > until:
                logs = "\n".join(
                    path.read_text(errors="replace")[-2000:] for path in self.folder.glob("*.[lo][ou][gt]")
                )
                raise TimeoutError(f"found no sign of {what} in {_START_S} s:\n{logs}")
            time.sleep(0.2)

    def _write_configuration(self) -> None:
        key = self.folder / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o400)
        ports = free_ports(2)
        conf = _CONF.format(
            host=self.host, folder=self.folder, ctld_port=ports[0], slurmd_port=ports[1], cpus=os.cpu_count(),
            devices=NUM_DEVICES,
        )  # fmt: skip
        (self.folder / "slurm.conf").write_text(conf)
        lines = []
        for number in range(NUM_DEVICES):
            device = self.folder / f"device{number}"
            os.mknod(device, 0o666 | stat.S_IFCHR, os.makedev(1, 3))
            lines.append(f"Name=gpu File={device}")
        (self.folder / "gres.conf").write_text("\n".join(lines) + "\n")
