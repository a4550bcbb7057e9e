"""A process that has imported the libraries and this project, and forks a process for each command.

A Dagster command spends four seconds on imports, and the tests run hundreds of commands. Each command is still a
process of its own, with its own environment, standard streams, exit status and end, but it need not import Dagster,
torch, DuckDB, Arrow and this project again. `tta_pipeline.definitions` is imported after the fork, since it reads the
environment.

This file is also the program that forks: it is run by its path, so that it imports no package.
"""

import atexit
import gc
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from pkgutil import walk_packages
from types import FrameType
from typing import Any, NoReturn

_LIBRARIES = (
    "dagster._cli",
    "dagster._core.definitions.antlr_asset_selection.antlr_asset_selection",
    "dagster._core.storage.base_storage",
    "dagster._core.storage.sqlite_storage",
    "dagster_dg_cli.cli.entrypoint",
    "duckdb",
    "matplotlib.backends.backend_svg",
    "pandas",  # DuckDB imports it where it is installed
    "PIL.GifImagePlugin",
    "pyarrow.compute",
    "pyarrow.pandas_compat",
    "pyarrow.parquet",
    "rich.progress",
    "sklearn.datasets",
    "torch",
    "upath.core",
)
_PROJECT = "tta_pipeline"
_AFTER_THE_FORK = frozenset({f"{_PROJECT}.definitions", f"{_PROJECT}.loading.baselines.litdata_loader"})
"""The first reads the environment; tests install another package in place of that which the second imports."""
_HEADER_BYTES = 2**20


@contextmanager
def forking_process() -> Iterator[Path]:
    """Start the process that forks, and give its address; requests wait until it has imported everything."""
    environment = {**os.environ, "PYTHONWARNINGS": "ignore", "OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory(prefix="tta-launcher-") as folder:
        address = Path(folder) / "socket"
        process = subprocess.Popen(
            [sys.executable, __file__, address], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
        )
        assert process.stdout is not None
        assert b"listening\n" == process.stdout.readline()
        yield address
        process.communicate()  # running commands continue to their end


@dataclass(frozen=True)
class Launcher:
    """Runs programs of the environment, each in a process forked from a common one."""

    address: Path

    def run(
        self, command: list[str], environment: dict[str, str], timeout_s: int, folder: Path | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run a program of the environment in *folder*, or where the tests are, and return when it has ended.

        The program may be `python -c CODE ARGUMENT...`.

        Raises:
            subprocess.TimeoutExpired: it takes longer; it is killed.
        """
        with (
            tempfile.TemporaryFile() as out,
            tempfile.TemporaryFile() as error,
            self.start(
                command, env=environment, cwd=folder, stdin=subprocess.DEVNULL, stdout=out, stderr=error
            ) as process,
        ):
            try:
                status = process.wait(timeout_s)
            except subprocess.TimeoutExpired:
                process.kill()
                raise
            out.seek(0)
            error.seek(0)
            return subprocess.CompletedProcess(command, status, out.read().decode(), error.read().decode())

    def start(self, command: list[str], **options: Any) -> subprocess.Popen[str]:
        """Start what `run` runs; *options* are streams, env, cwd and start_new_session of `Popen`."""
        return _Forked(self.address, command, text=True, **options)


class _Forked(subprocess.Popen[str]):
    """A process that the launcher forks, where `Popen` would fork this process and start an interpreter."""

    def __init__(self, address: Path, command: list[str], **options: Any) -> None:
        self._connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._connection.connect(str(address))
        self._answers = self._connection.makefile()
        super().__init__(command, **options)

    def _execute_child(self, command: list[str], *arguments: Any) -> None:
        """Send the command and the child's end of each stream; *arguments* are those that `Popen` passes."""
        folder, environment, ends, is_leader = arguments[4], arguments[5], arguments[9:15], arguments[20]
        asked = {
            "command": command, "environment": dict(environment or os.environ), "folder": str(folder or Path.cwd()),
            "is_leader": is_leader,
        }  # fmt: skip
        request = json.dumps(asked).encode()
        assert len(request) < _HEADER_BYTES
        streams = [end if end != -1 else number for number, end in enumerate((ends[0], ends[3], ends[5]))]
        socket.send_fds(self._connection, [request], streams)
        self._connection.shutdown(socket.SHUT_WR)
        self.pid = int(self._answers.readline())
        self._child_created = True
        self._close_pipe_fds(*ends)  # type: ignore[attr-defined] # of Popen

    def _wait(self, timeout: float | None) -> int:
        if self.returncode is None:
            if not select.select([self._connection], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(self.args, timeout or 0)
            self.returncode = int(self._answers.readline())
            self._answers.close()
            self._connection.close()
        return self.returncode

    def _internal_poll(self, *_: Any, **__: Any) -> int | None:
        with suppress(subprocess.TimeoutExpired):
            self._wait(0)
        return self.returncode


def _import_everything() -> None:
    """Import the libraries and every module of this project whose own libraries are installed."""
    for library in _LIBRARIES:
        with suppress(ImportError):
            import_module(library)
    for module in walk_packages(import_module(_PROJECT).__path__, f"{_PROJECT}."):
        if module.name not in _AFTER_THE_FORK:
            with suppress(ImportError):
                import_module(module.name)


def _serve(address: str) -> None:
    """Fork for every request until standard input ends; only forked processes that become a command return."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(address)
    listener.listen()
    sys.stdout.write("listening\n")
    sys.stdout.flush()
    if os.fork() == 0:  # this process waits for the end of standard input, the parent for requests
        listener.close()
        sys.stdin.buffer.read()
        os.kill(os.getppid(), signal.SIGKILL)
        os._exit(0)
    signal.signal(signal.SIGCHLD, _reap)
    _import_everything()
    gc.freeze()  # so that forked processes share the memory of these objects
    while True:
        connection, _ = listener.accept()
        if os.fork() == 0:
            listener.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            return _answer(connection)
        connection.close()


def _answer(connection: socket.socket) -> None:
    """Fork once more, wait, and send the exit status; return only in the process that becomes the command."""
    request, descriptors, *_ = socket.recv_fds(connection, _HEADER_BYTES, 3)
    while more := connection.recv(_HEADER_BYTES):
        request += more
    pid = os.fork()
    if pid == 0:
        connection.close()
        _become(descriptors, **json.loads(request))
        return
    connection.sendall(f"{pid}\n".encode())
    _, status = os.waitpid(pid, 0)
    connection.sendall(f"{os.waitstatus_to_exitcode(status)}\n".encode())
    os._exit(0)


def _become(
    descriptors: list[int], *, command: list[str], environment: dict[str, str], folder: str, is_leader: bool
) -> None:
    """Give this process the streams, environment, folder and arguments of a process that runs *command*."""
    if is_leader:
        os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a background command of a shell would ignore it
    for number, descriptor in enumerate(descriptors):
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.environ.clear()
    os.environ.update(environment)
    tempfile.tempdir = None  # that of the environment; a library may have asked for it before
    os.chdir(folder)
    program = Path(sys.executable).with_name(command[0])
    sys.argv = [str(program), *command[1:]]
    sys.path[:1] = [str(program.parent), *environment.get("PYTHONPATH", "").split(os.pathsep)]


def _find_program() -> Callable[[], object]:
    """Return what the present process, which was forked for it, runs."""
    name = Path(sys.argv[0]).name
    if name == "python":
        flag, code, *arguments = sys.argv[1:]
        assert flag == "-c"
        sys.argv = [flag, *arguments]
        return partial(exec, code, {"__name__": "__main__"})
    (entry,) = entry_points(group="console_scripts", name=name)
    program: Callable[[], object] = entry.load()
    return program


def _reap(number: int, frame: FrameType | None) -> None:
    del number, frame
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _end(program: Callable[[], object]) -> NoReturn:
    """Run *program* and end as the interpreter does, but without unloading modules, which takes two seconds."""
    status = 0
    try:
        program()
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
        if isinstance(end.code, str):
            sys.stderr.write(f"{end.code}\n")
    except BaseException as error:  # noqa: BLE001 - reported as the interpreter does
        sys.excepthook(type(error), error, error.__traceback__)
        status = 1
    threading._shutdown()  # type: ignore[attr-defined] # the interpreter calls it too; there is no public equivalent
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    _serve(sys.argv[1])
    _end(_find_program())
