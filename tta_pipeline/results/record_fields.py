"""Declarations of record fields (limits, column, comment), and the reader that enforces them.

A frozen dataclass declares a field as `error: Annotated[float, Column("Top-1 error", at_least=0, at_most=1)]`. The
columns of a table follow from that, and so does the validation of untrusted JSON.
"""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, NamedTuple, Self, get_args, get_origin, get_type_hints

from pydantic import ConfigDict, GetCoreSchemaHandler, TypeAdapter, ValidationError, with_config
from pydantic_core import CoreSchema, core_schema

from tta_pipeline.errors import RecordError
from tta_pipeline.util.json_values import JsonObject
from tta_pipeline.util.validation_errors import say_expected

FORBID_UNKNOWN_FIELDS = with_config(ConfigDict(extra="forbid"))
"""Decorator for a dataclass that accepts no facts but its fields."""
_BIGGEST = {"BIGINT": 2**63 - 1, "INTEGER": 2**31 - 1}


@dataclass(frozen=True, slots=True)
class Column:
    """Declaration of one field, in addition to its name and Python type."""

    comment: str
    sql: str = ""
    """Type in the database; if empty, it follows from the Python type."""
    at_least: float | None = None
    above: float | None = None
    at_most: float | None = None
    choices: tuple[str, ...] = ()
    shown: bool = False
    """Whether the web UI shows the field in the metadata of a cell."""
    shown_of_segment: bool = False
    """Whether the web UI shows the field in the table of a stream's segments."""
    alike: bool = False
    """Whether speeds are comparable only if this field is equal."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Return the pydantic schema for values of this field."""
        plain, is_nullable = _without_none(source)
        if get_origin(plain) is tuple:
            schema: CoreSchema = core_schema.tuple_variable_schema(self._value_schema(get_args(plain)[0]))
        else:
            schema = self._value_schema(plain)
        return core_schema.nullable_schema(schema) if is_nullable else schema

    def _value_schema(self, kind: type) -> CoreSchema:
        """Return the schema for one value of *kind*; a bool is not a number here, although Python makes it an int."""
        if kind is bool:
            return core_schema.bool_schema(strict=True)
        if kind is float:
            return core_schema.float_schema(
                strict=True, allow_inf_nan=False, ge=self.at_least, gt=self.above, le=self.at_most
            )
        if kind is int:
            biggest = _BIGGEST[self.sql.removesuffix("[]") or "BIGINT"]
            low = -biggest if self.at_least is None else int(self.at_least)
            high = biggest if self.at_most is None else int(self.at_most)
            above = None if self.above is None else int(self.above)
            return core_schema.int_schema(strict=True, ge=low, gt=above, le=high)
        if self.choices:
            return core_schema.literal_schema(list(self.choices))
        return core_schema.str_schema(strict=True)


class InlinePart(NamedTuple):
    """Mark of a part whose fields are columns of the record's own row; their names get a prefix."""

    prefix: str


class SeparatePart(NamedTuple):
    """Mark of a part that goes into another table, or into none."""


class Field(NamedTuple):
    """A column of a table: the declaration of its field, its SQL type, and whether it may be NULL."""

    name: str
    column: Column
    sql: str
    is_nullable: bool


@cache
def columns_of(kind: type) -> tuple[Field, ...]:
    """Return the columns that the dataclass *kind* fills: its own fields in order, then the fields of inline parts."""
    own = [
        Field(name, mark, mark.sql or _SQL[plain], is_nullable)
        for name, plain, mark, is_nullable in declarations(kind)
        if isinstance(mark, Column)
    ]
    of_parts = [
        field._replace(name=f"{prefix}{field.name}", is_nullable=field.is_nullable or is_optional)
        for _, part, prefix, is_optional in _inline_parts(kind)
        for field in columns_of(part)
    ]
    return (*own, *of_parts)


def values_of(record: Any) -> list[Any]:
    """Return the values of the columns of *record*, in the order of `columns_of`; None for a part that is None."""
    return _values(type(record), record)


def _values(kind: Any, record: Any) -> list[Any]:
    own, parts = _layout(kind)
    values = [getattr(record, name) for name in own]
    for name, part, num_columns in parts:
        of_record = getattr(record, name)
        values += [None] * num_columns if of_record is None else _values(part, of_record)
    return values


@cache
def _layout(kind: Any) -> tuple[tuple[str, ...], tuple[tuple[str, Any, int], ...]]:
    """Return the names of the columns of *kind* itself, and each inline part with its type and number of columns."""
    own = tuple(name for name, _, mark, _ in declarations(kind) if isinstance(mark, Column))
    return own, tuple((name, part, len(columns_of(part))) for name, part, _, _ in _inline_parts(kind))


def _inline_parts(kind: Any) -> Iterator[tuple[str, Any, str, bool]]:
    """Yield the name of each inline part, its type, the prefix of its columns, and whether it may be None."""
    for name, plain, mark, is_optional in declarations(kind):
        if isinstance(mark, InlinePart):
            yield name, plain, mark.prefix, is_optional


def declarations(kind: Any) -> Iterator[tuple[str, Any, Any, bool]]:
    """Yield the name of each field, its type without None, its annotation, and whether it may be None."""
    for name, hint in get_type_hints(kind, include_extras=True).items():
        if get_origin(hint) is Annotated:
            inner, mark = get_args(hint)
            plain, is_nullable = _without_none(inner)
            yield name, plain, mark, is_nullable


_SQL: Mapping[Any, str] = {
    int: "BIGINT", float: "DOUBLE", str: "VARCHAR", bool: "BOOLEAN", tuple[float, ...]: "DOUBLE[]",
    tuple[int, ...]: "BIGINT[]", tuple[str, ...]: "VARCHAR[]",
}  # fmt: skip


def _without_none(hint: Any) -> tuple[Any, bool]:
    """Return *hint* without None, and whether it allows None."""
    if not isinstance(hint, UnionType):
        return hint, False
    (plain,) = (kind for kind in get_args(hint) if kind is not NoneType)
    return plain, True


@dataclass(frozen=True, kw_only=True, slots=True)
class RecordedFacts:
    """What a record is about."""

    @classmethod
    def from_facts(cls, facts: Mapping[str, Any]) -> Self:
        """Return the facts in the JSON of a record.

        Raises:
            RecordError: a field is missing, unknown, of the wrong type or out of its limits, or two contradict each
                other; the message has the field, its value and what was expected.
        """
        try:
            found: Self = _adapter(cls).validate_python(facts)  # type: ignore[arg-type]  # a class is hashable
        except ValidationError as error:
            raise RecordError(_describe_error(error)) from None
        found.require_consistent()
        return found

    def facts(self) -> JsonObject:
        """Return the facts as they are written into a record."""
        return asdict(self)

    def by_column(self) -> JsonObject:
        """Return the values of the record's columns, by name."""
        names = [field.name for field in columns_of(type(self))]  # type: ignore[arg-type]  # a class is hashable
        return dict(zip(names, values_of(self), strict=True))

    def require_consistent(self) -> None:
        """Check that fields that follow from each other agree.

        Raises:
            RecordError: two fields contradict each other.
        """


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def _describe_error(error: ValidationError) -> str:
    """Return a message with the found and the expected value; missing or unknown fields are listed together."""
    found = error.errors(include_url=False)
    for sort, words in _ODD_FIELDS.items():
        names = [".".join(map(str, each["loc"])) for each in found if each["type"] == sort]
        if names:
            return (
                f"{words[0]} {', '.join(names[:5])}{words[1]}; expected the fields of {error.title} as this version of "
                "tta_pipeline has them: evaluate again"
            )
    first = found[0]
    name = ".".join(map(str, first["loc"])) or "it"
    return f"{name} is {first['input']!r:.60}; expected {say_expected(first)}"


_ODD_FIELDS = {"unexpected_keyword_argument": ("has", ", which is not one of its fields"), "missing": ("lacks", "")}
