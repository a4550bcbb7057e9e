"""The mistakes in a benchmark file, one sentence each."""

import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from pydantic import ValidationError

from tta_pipeline.util.config_model import ConfigModel
from tta_pipeline.util.identifiers import BENCHMARK_NAME_PATTERN, NAME_PATTERN
from tta_pipeline.util.nearest_names import name_choices
from tta_pipeline.util.short_lists import short_repr

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

_EXPECTED_OF_KIND = {
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "string": "text",
    "path": "a path",
    "tuple": "a list",
    "list": "a list",
    "dict": "fields by name",
    "model": "fields by name",
    "dataclass": "fields by name",
}
"""What a field of each kind of value takes, by the first word of pydantic's name for the mistake."""
_OF_WRONG_KIND = re.compile(r"([a-z]+)_(?:parsing|from_float|attributes_type|type)")


def mistakes(error: ValidationError, prefix: str, content: object = None) -> Iterator[str]:
    """Yield a sentence for each wrong field in *error*.

    Args:
        error: What pydantic found.
        prefix: What field names get in front.
        content: What was validated, if it has sections with a `kind`.
    """
    for problem in error.errors():
        field = ".".join(str(part) for part in (prefix, *_field_names(problem["loc"], content)) if part != "")
        if problem["type"] == "missing" and isinstance(problem["loc"][-1], int):
            if problem["loc"][-1] == len(problem["input"]):  # the values after it are missing as well
                yield f"{field.rpartition('.')[0]} is {short_repr(problem['input'])}; expected more values"
        elif problem["type"] == "missing":
            yield f"{field} is missing"
        elif problem["type"] == "union_tag_not_found":
            yield f"{field}.kind is missing"
        elif problem["type"] == "int_parsing_size":
            yield f"{field} is {short_repr(problem['input'])}; expected a whole number with fewer digits"
        elif problem.get("ctx", {}).get("pattern") in (NAME_PATTERN, BENCHMARK_NAME_PATTERN):
            yield f"{field} is {short_repr(problem['input'])}; expected letters, digits and _, a letter first"
        elif problem["type"] in ("literal_error", "union_tag_invalid"):
            yield _wrong_choice(field, problem)
        elif problem["type"] == "value_error":
            message = problem["msg"].removeprefix("Value error, ")
            yield f"{field}: {message}" if field else message
        else:
            yield f"{field} is {short_repr(problem['input'])}; expected {say_expected(problem)}"


def _field_names(location: tuple[str | int, ...], content: object) -> Iterator[str | int]:
    """Yield the parts of *location* that are in the file; pydantic names the kind of a section like a field."""
    for part in location:
        if isinstance(content, Mapping) and content.get("kind") == part:
            continue
        yield part
        try:
            content = content[part]  # type: ignore[index]
        except (LookupError, TypeError):  # missing, or no section
            content = None


def say_expected(problem: "ErrorDetails") -> str:
    """Return what *problem* expected instead of the value, in the words of a user."""
    kind = _OF_WRONG_KIND.fullmatch(problem["type"])
    message = re.sub(r"^Input should (be )?|^String should (have|match) ", "", problem["msg"])
    return _EXPECTED_OF_KIND.get(kind[1], message) if kind else message


def _wrong_choice(field: str, problem: "ErrorDetails") -> str:
    """Return the sentence for a *field* whose value is none of the choices, or whose kind of section is none."""
    context, found = problem["ctx"], problem["input"]
    if problem["type"] == "union_tag_invalid":
        discriminator, found = context["discriminator"].strip("'"), context["tag"]
        field = f"{field}.{discriminator}" if field else discriminator
    known = re.findall(r"'([^']*)'", context.get("expected_tags") or context["expected"])
    choices = name_choices(found, known, listed_in=ConfigModel.listed_in) if known else context["expected"]
    return f"{field} is {short_repr(found)}; expected one of {choices}"
