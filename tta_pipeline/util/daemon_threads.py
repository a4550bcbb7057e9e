"""Work in threads that Ctrl-C does not wait for, such as a library's call that waits for a server."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, wait
from itertools import islice
from threading import Thread
from typing import TypeVar

_LISTEN_S = 0.5
"""Longest wait for a result before Python checks for a signal: one just before a wait begins does not interrupt it."""

Item = TypeVar("Item")
Result = TypeVar("Result")


def run_ahead(work: Callable[[Item], Result], items: Iterable[Item], *, num_at_once: int = 1) -> Iterator[Result]:
    """Yield the result of *work* for each of *items*, in their order, while the next *num_at_once* are worked on.

    Raises:
        Exception: *work* raised it; work that has begun continues, and nothing waits for it.
    """
    remaining = iter(items)
    running = deque(_start(work, item) for item in islice(remaining, num_at_once))
    while running:
        future = running.popleft()
        while not future.done():
            wait([future], timeout=_LISTEN_S)
        result = future.result()
        running.extend(_start(work, item) for item in islice(remaining, 1))
        yield result


def _start(work: Callable[[Item], Result], item: Item) -> Future[Result]:
    future = Future[Result]()

    def run() -> None:
        try:
            future.set_result(work(item))
        except BaseException as error:  # noqa: BLE001 - it is raised by the thread that waits
            future.set_exception(error)

    Thread(target=run, name="tta-ahead", daemon=True).start()
    return future
