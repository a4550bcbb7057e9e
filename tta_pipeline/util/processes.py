"""Worker processes without `multiprocessing`.

Unlike its processes, these never import the program's main module, which takes a second for Dagster. They also end by
themselves when their parent is killed, because their input then ends.
"""

import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from queue import SimpleQueue
from types import TracebackType
from typing import IO, Any, ParamSpec, Self, TypeVar

from tta_pipeline.errors import WorkerError
from tta_pipeline.util.garbage_collection import gc_paused

P = ParamSpec("P")
Result = TypeVar("Result")
MAX_PROCESSES = 1_024
"""Largest number of processes that the user can request; more speed up no machine."""
_COMMAND = (sys.executable, "-c", "from tta_pipeline.util.processes import serve; serve()")


_MIN_WORK_BYTES = 32 * 2**20
"""Work on fewer bytes is finished before a process has started and imported its modules."""


class Workers:
    """A fixed number of processes, started by the first submitted work and killed at the end of the block."""

    def __init__(self, num_processes: int) -> None:
        self.num_processes = num_processes
        self._expected_bytes = 0
        self._processes: list[subprocess.Popen[bytes]] = []
        self._idle: SimpleQueue[subprocess.Popen[bytes]] = SimpleQueue()
        # A thread for each process sends it work and waits for the result.
        self._threads = ThreadPoolExecutor(num_processes, thread_name_prefix="tta-worker")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for process in self._processes:
            process.kill()
        self._threads.shutdown(cancel_futures=True)
        for process in self._processes:
            process.communicate()

    def expect(self, num_bytes: int) -> None:
        """Add *num_bytes* of images to the work that is to be done."""
        self._expected_bytes += num_bytes

    def are_worth_starting(self, more_bytes: int = 0) -> bool:
        """Return whether the expected work, with *more_bytes* of images, is worth starting the processes."""
        return self.num_processes > 1 and self._expected_bytes + more_bytes >= _MIN_WORK_BYTES

    def start(self, work: Callable[..., Any] | None = None) -> None:
        """Start the processes that are not running yet, and let them import the module of *work*."""
        while len(self._processes) < self.num_processes:
            process = start_worker()
            self._processes.append(process)
            self._idle.put(process)
            if work:
                self._threads.submit(self._run_in_worker, _import_only, (work,), {})

    def submit(self, work: Callable[P, Result], /, *args: P.args, **kwargs: P.kwargs) -> Future[Result]:
        """Run *work*, a module-level function, in one of the processes, and return the future of its result.

        The future raises the error of *work*, or `WorkerError` if the process ended before it returned.
        """
        self.start()
        return self._threads.submit(self._run_in_worker, work, args, kwargs)

    def map(self, work: Callable[[Any], Result], pieces: Iterable[Any]) -> Iterator[Result]:
        """Yield the result of *work* on each of *pieces*, in their order."""
        futures = [self.submit(work, piece) for piece in pieces]
        try:
            for future in futures:
                yield future.result()
        finally:
            for future in futures:
                future.cancel()

    def _run_in_worker(self, work: Callable[..., Result], args: Any, kwargs: Any) -> Result:
        process = self._idle.get()
        try:
            return ask_worker(process, work, *args, **kwargs)
        finally:
            self._idle.put(process)


def start_worker() -> subprocess.Popen[bytes]:
    """Start a process that does the work of `ask_worker` until it is killed, or its input ends."""
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),  # workers import the same modules
        "OPENBLAS_NUM_THREADS": "1",  # otherwise NumPy starts a thread per core in every worker
    }
    return subprocess.Popen(  # noqa: S603 - our own command, and nothing else
        _COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
    )


def ask_worker(
    process: subprocess.Popen[bytes], work: Callable[P, Result], /, *args: P.args, **kwargs: P.kwargs
) -> Result:
    """Return the result of *work*, a module-level function, in a *process* that does nothing else meanwhile.

    Raises:
        WorkerError: the process ended before it returned.
        Exception: *work* raised it.
    """
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        _send((work, args, kwargs), process.stdin)
        succeeded, result = pickle.load(process.stdout)  # noqa: S301 - from our own child
    except (EOFError, OSError, pickle.UnpicklingError) as error:  # it may end in the middle of a result
        raise WorkerError(
            f"The process {process.pid} ended with status {process.wait()} during its work, probably because memory "
            "ran out; expected a result: use fewer processes"
        ) from error
    if not succeeded:
        raise result
    return result  # type: ignore[no-any-return]


def _import_only(work: Callable[..., Any]) -> None:
    """Do nothing: a process that unpickles *work* has imported its module."""
    del work


def serve() -> None:
    """Run the work that arrives on standard input until the input ends; the main loop of every worker process."""
    import signal

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent receives it too, and ends this process
    requests, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # so that the output of `print` is not taken for a result
    while True:
        try:
            with gc_paused():
                work, args, kwargs = pickle.load(requests)  # noqa: S301 - from our own parent
        except EOFError:
            return
        try:
            answer = (True, work(*args, **kwargs))
        except Exception as error:  # noqa: BLE001 - the parent raises it
            answer = (False, error)
        try:
            _send(answer, answers)
        except BrokenPipeError:  # the parent has ended, for example by Ctrl-C
            os._exit(1)


def _send(message: Any, stream: IO[bytes]) -> None:
    pickle.dump(message, stream, pickle.HIGHEST_PROTOCOL)
    stream.flush()
