"""Errors in code that a user wrote: where they arose, and the traceback from there on.

Frames of this project, of Dagster and of other libraries above the user's own code do not help its author.
"""

import inspect
import sys
import sysconfig
import traceback
from pathlib import Path

_PACKAGE = Path(__file__).parents[1]
_INSTALLED = frozenset(
    path
    for name in ("stdlib", "platstdlib", "purelib", "platlib")
    for path in (Path(sysconfig.get_path(name)), Path(sysconfig.get_path(name)).resolve())
)


def describe_raised(error: BaseException) -> str:
    """Return *error* with the file and line of the user's code at which it arose; alone if none was running."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"SyntaxError: {error.msg} in {error.filename}, line {error.lineno}"
    own = [frame for frame in _frames(error) if _is_own(frame.filename)]
    return f"{error!r} in {own[-1].filename}, line {own[-1].lineno}, {own[-1].name}" if own else repr(error)


def arose_in_own_code(error: BaseException) -> bool:
    """Return whether the user's code, or a library that it called, raised *error*, and not this project."""
    frames = [frame.filename for frame in _frames(error)]
    known = [file for file in frames if _is_own(file) or Path(file).is_relative_to(_PACKAGE)]
    return bool(known) and _is_own(known[-1])


def own_traceback(error: BaseException | None) -> str:
    """Return the traceback of the error that first led to *error*, from the user's code on.

    It is empty if none of the user's code was running, or if it called nothing: `describe_raised` has named the line.
    """
    while error is not None and error.__cause__ is not None:
        error = error.__cause__
    frames = _frames(error) if error else []
    first = next((number for number, frame in enumerate(frames) if _is_own(frame.filename)), len(frames))
    return "".join(traceback.format_list(frames[first:])) if len(frames) - first > 1 else ""


def _frames(error: BaseException) -> traceback.StackSummary:
    """Return the frames of *error*, all of them: Dagster's steps set `sys.tracebacklimit`, and it stays set."""
    return traceback.extract_tb(error.__traceback__, limit=sys.getrecursionlimit())


def is_own(kind: type) -> bool:
    """Return whether *kind* is no class of this project."""
    return kind.__module__.partition(".")[0] != _PACKAGE.name


def place_of(*objects: object) -> str:
    """Return ` (<file>, line <n>)` of the first of *objects*, functions or classes, that a user wrote, or no text."""
    for found in objects:
        try:
            file, (_, line) = inspect.getsourcefile(found), inspect.getsourcelines(found)  # type: ignore[arg-type]
        except (OSError, TypeError):
            continue
        if file and _is_own(file):
            return f" ({file}, line {line})"
    return ""


def _is_own(file: str) -> bool:
    """Return whether *file* is neither of this project nor installed; code without a file belongs to nobody."""
    return not file.startswith("<") and not any(Path(file).is_relative_to(folder) for folder in (_PACKAGE, *_INSTALLED))
