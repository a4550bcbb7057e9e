"""Python functions that a benchmark file names as `module:name`; they are imported only when they run."""

import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from tta_pipeline.errors import ShardError
from tta_pipeline.util.source_code import find_module, load_reference

_REFERENCE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")


def is_reference(text: str) -> bool:
    """Return whether *text* has the form `module:name`."""
    return _REFERENCE.fullmatch(text) is not None


def find_function_file(reference: str) -> Path:
    """Return the source file of the module in *reference*, `module:name`, without importing anything.

    Modules are searched on Python's path and in the working directory.

    Raises:
        ValueError: *reference* has another form, or its module does not exist or is not Python source.
    """
    if not is_reference(reference):
        raise ValueError(f"the function is {reference!r}; expected module:name, such as my_functions:grey")
    module = reference.partition(":")[0]
    found = find_module(module)
    if found is None or found.origin is None or not found.origin.endswith(".py"):
        raise ValueError(
            f"there is no module {module} for {reference!r}; expected a .py file on Python's path, such as in the "
            "project folder: correct the name"
        )
    return Path(found.origin)


@cache
def load_function(reference: str) -> Callable[..., Any]:
    """Import the function that *reference* names.

    Raises:
        ShardError: the module cannot be imported, or has no function of this name.
    """
    try:
        function = load_reference(reference)
    except ValueError as error:
        raise ShardError(f"{error}; expected a function") from error
    if not callable(function):
        raise ShardError(f"{reference!r} is of type {type(function).__name__}; expected a function")
    return function
