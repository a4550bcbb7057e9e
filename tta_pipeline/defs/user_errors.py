"""Errors of this project in a run: one line in its log, not hidden by Dagster's and our own frames.

A full disk and similar errors are one line too. An error in a user's code is one line with its place, and the
traceback from there on. Any other error outside the tree of `errors.py` keeps its traceback.
"""

import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import wraps
from typing import Any

import dagster as dg

from tta_pipeline.errors import PipelineError
from tta_pipeline.util.files import advice, is_of_the_disk
from tta_pipeline.util.own_code import arose_in_own_code, describe_raised, own_traceback

Metadata = Mapping[str, dg.MetadataValue[Any] | str | float | dict[str, float]]
"""Metadata of an event, by name."""


def with_one_line_errors(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return *function*, the body of an asset or of checks; the log shows each `PipelineError` of it in one line."""

    @wraps(function)
    def returning(*args: Any, **kwargs: Any) -> Any:
        with _without_traceback():
            return function(*args, **kwargs)

    @wraps(function)
    def yielding(*args: Any, **kwargs: Any) -> Iterator[Any]:
        with _without_traceback():
            yield from function(*args, **kwargs)

    return yielding if inspect.isgeneratorfunction(inspect.unwrap(function)) else returning


@contextmanager
def as_failure(describe: Callable[[Exception], tuple[str, Metadata]]) -> Iterator[None]:
    """Turn a user error in the block into a failure with the description and metadata that *describe* returns.

    Raises:
        dg.Failure: for any `PipelineError`, disk error or error in the user's code, unless an interrupt caused it.
    """
    try:
        yield
    except dg.Failure:
        raise
    except Exception as error:
        is_of_the_user = isinstance(error, PipelineError) or is_of_the_disk(error) or arose_in_own_code(error)
        if _is_interrupted(error) or not is_of_the_user:
            raise
        description, metadata = describe(error)
        if own := own_traceback(error):
            description = f"{description}\n{own.rstrip()}"
        raise dg.Failure(description=description, metadata={"fault": type(error).__name__, **metadata}) from None


def say_error(error: Exception) -> str:
    """Return *error* in words, with the place in the user's code unless this project or the disk caused it."""
    if is_of_the_disk(error) and not arose_in_own_code(error):
        return f"{error}: {advice(error)}"
    return str(error) if isinstance(error, PipelineError) else f"{describe_raised(error)}: fix the code that raised it"


@contextmanager
def _without_traceback() -> Iterator[None]:
    """Let Dagster format a failure in the block without its frames, which it does after the block.

    Other errors, and errors in the next block, are formatted in full. The limit is process-wide, since Dagster
    formats with `traceback.TracebackException(type, error, traceback)`: it takes every frame that the error passed on
    its way, whatever the error has in `__traceback__`, and offers no setting.
    """
    with suppress(AttributeError):
        del sys.tracebacklimit
    try:
        with as_failure(lambda error: (say_error(error), {})):
            yield
    except dg.Failure:
        sys.tracebacklimit = 0
        raise


def _is_interrupted(error: BaseException | None) -> bool:
    """Return whether an interrupt, by Ctrl-C or by a signal, caused *error*."""
    while isinstance(error, Exception):
        error = error.__cause__ or error.__context__
    return error is not None
