"""A process that has imported the libraries and this project, and forks a process for each command.

A Dagster command spends four seconds on imports, and the tests run hundreds of commands. Each command is still a
process of its own, with its own environment, standard streams, exit status and end, but it need not import Dagster,
torch, DuckDB, Arrow and this project again.

This file is also the program that forks, and the one that pytest-xdist starts for each of its workers, which has it
forked: it is run by its path, so that it imports no package.
"""

import atexit
import gc
import json
import os
import runpy
import select
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
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
    "fontTools.subset",
    "matplotlib.backends.backend_pdf",
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
_HEADER_BYTES = 2**20
_TEMPORARY = tempfile.gettempdir()
"""The folder for temporary files, which the first test that needs a process may have changed for itself."""


@contextmanager
def forking_process() -> Iterator[Path]:
    """Start the process that forks, and give its address; requests wait until it has imported everything."""
    environment = {**os.environ, "PYTHONWARNINGS": "ignore", "PYTHONUTF8": "0", "OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory(prefix="tta-launcher-", dir=_TEMPORARY) as folder:
        address = Path(folder) / "socket"
        program = Launcher(address).python
        program.write_text(f'#!/bin/sh\nexec {forked_python(address)} "$@"\n')
        program.chmod(0o755)
        process = subprocess.Popen(
            [sys.executable, __file__, address], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
        )
        assert process.stdout is not None
        assert b"listening\n" == process.stdout.readline()
        yield address
        process.communicate()  # running commands continue to their end


def forked_python(address: Path) -> str:
    """Return the command line of a Python that is forked from the process at *address*; it takes `-u`, `-c`, `-m`."""
    return shlex.join([sys.executable, "-S", __file__, str(address)])


@dataclass(frozen=True)
class Launcher:
    """Runs programs of the environment, each in a process forked from a common one."""

    address: Path

    @property
    def python(self) -> Path:
        """A program that takes `-c` or `-m` as Python does, and has it forked."""
        return self.address.with_name("python")

    def run(
        self, command: list[str], environment: dict[str, str], timeout_s: int, folder: Path | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run a program of the environment in *folder*, or where the tests are, and return when it has ended.

        The program may be `python -c CODE ARGUMENT...` or `python -m MODULE ARGUMENT...`.

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


def _import_everything(address: Path) -> None:
    """Import the libraries and every module of this project whose own libraries are installed.

    Worker processes of this project, which its tests start a hundred times, are forked from then on, too.
    """
    for library in _LIBRARIES:
        with suppress(ImportError):
            import_module(library)
    for module in walk_packages(import_module(_PROJECT).__path__, f"{_PROJECT}."):
        with suppress(ImportError):
            import_module(module.name)
    workers: Any = import_module("tta_pipeline.util.processes")
    workers._COMMAND = (str(Launcher(address).python), *workers._COMMAND[1:])


def _use_dagster_once() -> None:
    """Materialize an asset that is nothing: on first use Dagster imports and compiles what each command needs."""
    import dagster as dg

    @dg.asset
    def nothing() -> None:
        pass

    settings: dict[str, Any] = {
        "telemetry": {"enabled": False},
        "compute_logs": {
            "module": "dagster._core.storage.noop_compute_log_manager", "class": "NoOpComputeLogManager"
        },
    }  # fmt: skip
    quiet = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}
    with (
        tempfile.TemporaryDirectory(prefix="tta-launcher-") as home,
        dg.DagsterInstance.local_temp(home, overrides=settings) as instance,
    ):
        dg.materialize([nothing], instance=instance, run_config=quiet)


def _make_database_once() -> None:
    """Publish that there are no results: a process makes an empty database once, which takes most of a second."""
    from tta_pipeline.domain.locations import Locations
    from tta_pipeline.results.database.publication import publish_metrics

    with tempfile.TemporaryDirectory(prefix="tta-launcher-") as root:
        publish_metrics(Locations(root=Path(root)))


def _build_definitions_once() -> None:
    """Build the embedded benchmark's: pydantic completes the classes of a benchmark file on first use."""
    from tta_pipeline.definitions import build_definitions
    from tta_pipeline.domain.locations import Locations

    with tempfile.TemporaryDirectory(prefix="tta-launcher-") as root:
        build_definitions(Locations(root=Path(root))).get_repository_def()


def _read_revisions_once() -> None:
    """Keep the revisions of Dagster's tables: each instance imports 90 files, five times, to ask for the last."""
    from alembic.config import Config
    from alembic.script import ScriptDirectory

    known: dict[str | None, ScriptDirectory] = {}
    read = ScriptDirectory.from_config

    def from_config(config: Config) -> ScriptDirectory:
        folder = config.get_main_option("script_location")
        if folder not in known:
            known[folder] = read(config)
        return known[folder]

    ScriptDirectory.from_config = from_config  # type: ignore[method-assign]


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
    _import_everything(Path(address))
    _read_revisions_once()
    _use_dagster_once()
    _build_definitions_once()
    _make_database_once()
    _forget_ends()
    gc.freeze()  # so that forked processes share the memory of these objects
    some_ended, wakes = socket.socketpair()
    wakes.setblocking(False)
    signal.set_wakeup_fd(wakes.fileno(), warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, _wake)
    running: dict[int, socket.socket] = {}
    while True:
        ready, _, _ = select.select([listener, some_ended], [], [])
        if some_ended in ready:
            some_ended.recv(_HEADER_BYTES)
            _send_statuses(running)
        if listener in ready and _starts_command(listener.accept()[0], running, unneeded=(listener, some_ended, wakes)):
            return


def _wake(number: int, frame: FrameType | None) -> None:
    """Do nothing, but be a handler: only then does the signal write to the socket that `_serve` waits for."""
    del number, frame


def _forget_ends() -> None:
    """Keep forked processes from undoing at their end what was imported here: it takes 0.1 s of each, for nothing."""
    for finalizer in weakref.finalize._registry.values():  # type: ignore[attr-defined] # there is no public list
        finalizer.atexit = False
    with suppress(ImportError, AttributeError):
        atexit.unregister(import_module("torch._dynamo.utils").dump_compile_times)


def _send_statuses(running: dict[int, socket.socket]) -> None:
    """Send the exit status of each command that has ended to who waits for it."""
    with suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            connection = running.pop(ended[0], None)
            if connection is None:
                continue
            with connection, suppress(BrokenPipeError):  # nobody waits any more
                connection.sendall(f"{os.waitstatus_to_exitcode(ended[1])}\n".encode())


def _starts_command(
    connection: socket.socket, running: dict[int, socket.socket], *, unneeded: Sequence[socket.socket]
) -> bool:
    """Fork for the request on *connection*; return whether this is the process that becomes the command."""
    request, descriptors, *_ = socket.recv_fds(connection, _HEADER_BYTES, 3)
    while more := connection.recv(_HEADER_BYTES):
        request += more
    pid = os.fork()
    if pid == 0:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for each in (connection, *running.values(), *unneeded):
            each.close()
        _become(descriptors, **json.loads(request))
        return True
    running[pid] = connection
    for descriptor in descriptors:
        os.close(descriptor)
    with suppress(BrokenPipeError):
        connection.sendall(f"{pid}\n".encode())
    return False


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
    beside = "" if command[0] == "python" else str(program.parent)  # Python looks in its folder for `-c` and `-m`
    sys.path[:1] = [beside, *environment.get("PYTHONPATH", "").split(os.pathsep)]


def _find_program() -> Callable[[], object]:
    """Return what the present process, which was forked for it, runs."""
    name = Path(sys.argv[0]).name
    if name == "python":
        flag, code, *arguments = sys.argv[1:]
        sys.argv = [flag, *arguments]
        if flag == "-m":
            return partial(runpy.run_module, code, run_name="__main__", alter_sys=True)
        assert flag == "-c"
        return partial(exec, code, {"__name__": "__main__"})
    (entry,) = entry_points(group="console_scripts", name=name)
    program: Callable[[], object] = entry.load()
    return program


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


def _relay(address: str, command: Sequence[str]) -> int:
    """Have `python` *command* forked with the streams of this process; return its exit status."""
    return Launcher(Path(address)).start(["python", *command], env=dict(os.environ)).wait()


if __name__ == "__main__":
    if len(sys.argv) > 2:
        sys.exit(_relay(sys.argv[1], [argument for argument in sys.argv[2:] if argument != "-u"]))
    _serve(sys.argv[1])
    _end(_find_program())
