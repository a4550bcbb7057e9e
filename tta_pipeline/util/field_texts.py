"""The descriptions of fields, read from the code.

Pydantic would read them at every import, a quarter of a second for all kinds; only the reference and `dg` show them.
"""

import ast
import inspect
import textwrap
from collections.abc import Mapping
from functools import cache
from itertools import pairwise

from pydantic import BaseModel


def describe_field(kind: type[BaseModel], field: str) -> str | None:
    """Return the description of *field*: the text under it in the code of *kind*, or of the base that declares it."""
    if said := kind.model_fields[field].description:
        return said
    owner = next(each for each in kind.mro() if field in inspect.get_annotations(each))
    return _texts_of_fields(owner).get(field)


@cache
def _texts_of_fields(kind: type) -> Mapping[str, str]:
    (body,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    assert isinstance(body, ast.ClassDef)
    return {
        field.target.id: inspect.cleandoc(text.value.value)
        for field, text in pairwise(body.body)
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
        if isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant) and isinstance(text.value.value, str)
    }
