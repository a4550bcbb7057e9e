"""Work in threads that Ctrl-C does not wait for, such as that of a library that waits for a server."""

from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from threading import Thread
from typing import TypeVar

_LISTEN_S = 0.5
"""Longest wait for a result before Python checks for a signal: one just before a wait begins does not interrupt it."""

Item = TypeVar("Item")
Result = TypeVar("Result")


def run_at_once(work: Callable[[Item], Result], items: Sequence[Item], *, num_threads: int) -> list[Result]:
    """Return the result of *work* for each of *items*, in their order.

    After an error, work that has begun is waited for, and the rest is left undone; after Ctrl-C nothing is waited for.

    Raises:
        Exception: *work* raised it.
    """
    futures = [Future[Result]() for _ in items]
    pending = iter(list(zip(items, futures, strict=True)))

    def serve() -> None:
        for item, future in pending:
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(work(item))
                except BaseException as error:  # noqa: BLE001 - it is raised by the thread that waits
                    future.set_exception(error)

    for _ in range(min(num_threads, len(items))):
        Thread(target=serve, name="tta-at-once", daemon=True).start()
    try:
        return [_await(future) for future in futures]
    except Exception:
        wait([future for future in futures if not future.cancel()])
        raise
    finally:
        for future in futures:
            future.cancel()


def _await(future: Future[Result]) -> Result:
    while not future.done():
        wait([future], timeout=_LISTEN_S)
    return future.result()
