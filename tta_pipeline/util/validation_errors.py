"""The mistakes in a benchmark file, one sentence each."""

import re
from collections.abc import Iterator

from pydantic import ValidationError

from tta_pipeline.util.identifiers import BENCHMARK_NAME_PATTERN, NAME_PATTERN


def mistakes(error: ValidationError, prefix: str) -> Iterator[str]:
    """Yield a sentence for each wrong field in *error*; field names get *prefix*."""
    for problem in error.errors():
        field = ".".join(str(part) for part in (prefix, *problem["loc"]) if part != "")
        message = re.sub(r"^Value error, |^Input should be |^String should (have|match) ", "", problem["msg"])
        if problem["type"] == "missing":
            yield f"{field} is missing"
        elif problem["type"] == "int_parsing_size":
            yield f"{field} is {short_repr(problem['input'])}; expected a whole number with fewer digits"
        elif problem.get("ctx", {}).get("pattern") in (NAME_PATTERN, BENCHMARK_NAME_PATTERN):
            yield f"{field} is {short_repr(problem['input'])}; expected letters, digits and _, a letter first"
        elif problem["type"] == "value_error":
            yield f"{field}: {message}" if field else message
        else:
            yield f"{field} is {short_repr(problem['input'])}; expected {message}"


def short_repr(value: object, limit: int = 80) -> str:
    """Return the repr of *value*, cut to *limit* characters; if repr fails, name the type of *value*."""
    try:
        text = repr(value)
    except Exception as error:  # noqa: BLE001 - a number of more than 4,300 digits, or a class of the user's own
        text = f"a {type(value).__name__} that cannot be shown ({error})"
    return text if len(text) <= limit else f"{text[: limit - 1]}…"
