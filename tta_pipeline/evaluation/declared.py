"""Fields that say once what they are: their limits, their column, their comment; and the reader that holds them to it.

A frozen dataclass declares a field as `error: Annotated[float, Column("Top-1 error", at_least=0, at_most=1)]`. From
that follow the columns of a table, and what makes the dataclass of JSON that nobody has checked.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, is_dataclass
from functools import cache, partial
from math import inf, isfinite, nextafter
from operator import itemgetter, le
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NamedTuple, TypeVar, get_args, get_origin, get_type_hints

from tta_pipeline.errors import RecordError

_BIGGEST = {"BIGINT": 2**63 - 1, "INTEGER": 2**31 - 1}


@dataclass(frozen=True, slots=True)
class Column:
    """What is known of one field besides its name and Python type."""

    comment: str
    sql: str = ""
    """Its type in the database; that of the Python type if empty."""
    at_least: float | None = None
    above: float | None = None
    at_most: float | None = None
    choices: tuple[str, ...] = ()
    shown: bool = False
    """In the metadata of a cell in the web UI."""
    shown_of_visit: bool = False
    """In the table of a stream's visits there."""
    better: Literal["lower", "higher"] | None = None
    alike: bool = False
    """Whether speeds compare only where it is equal."""


class Inline(NamedTuple):
    """A part whose fields are columns of the evaluation's own row, their names behind a prefix."""

    prefix: str


class Apart(NamedTuple):
    """A part that is in another table, or in none."""


class Field(NamedTuple):
    """A column of a table: what was declared with a field, its SQL type, and whether it may be NULL."""

    name: str
    column: Column
    sql: str
    is_nullable: bool
    path: str
    """Of the attribute of a record, such as `calibration.counts`."""


def columns_of(kind: type) -> tuple[Field, ...]:
    """Return the columns that the dataclass *kind* fills, in their order, those of inline parts among them."""
    return tuple(_columns(kind, "", ""))


def declarations(kind: Any) -> Iterator[tuple[str, Any, Any, bool]]:
    """Yield the name of each field, its type without None, its mark, and whether it may be None."""
    for name, hint in get_type_hints(kind, include_extras=True).items():
        if get_origin(hint) is Annotated:
            inner, mark = get_args(hint)
            plain, is_nullable = _without_none(inner)
            yield name, plain, mark, is_nullable


def _columns(kind: Any, prefix: str, path: str) -> Iterator[Field]:
    for name, plain, mark, is_nullable in declarations(kind):
        if isinstance(mark, Inline):
            yield from _columns(plain, mark.prefix, f"{path}{name}.")
        elif isinstance(mark, Column):
            yield Field(f"{prefix}{name}", mark, mark.sql or _SQL[plain], is_nullable, f"{path}{name}")


_SQL: Mapping[Any, str] = {
    int: "BIGINT", float: "DOUBLE", str: "VARCHAR", bool: "BOOLEAN", tuple[float, ...]: "DOUBLE[]",
    tuple[int, ...]: "BIGINT[]",
}  # fmt: skip


def _without_none(hint: Any) -> tuple[Any, bool]:
    """Return the type that *hint* is besides None, and whether it may be None."""
    if not isinstance(hint, UnionType):
        return hint, False
    (plain,) = (kind for kind in get_args(hint) if kind is not NoneType)
    return plain, True


Part = TypeVar("Part")
Reader = Callable[[Any], Any]


class _FieldError(ValueError):
    """A value is not what its field holds; the message says what was expected."""


@cache
def _readers(kind: Any) -> Mapping[str, Reader]:
    """Return for each field of *kind* what makes a value of what JSON has, or raises `_FieldError`."""
    found = {}
    for name, plain, mark, is_nullable in declarations(kind):
        reader = partial(decoded, plain) if isinstance(plain, type) and is_dataclass(plain) else _of_values(plain, mark)
        found[name] = partial(_or_none, reader) if is_nullable else reader
    return found


def decoded(kind: Callable[..., Part], facts: Any) -> Part:
    """Return *facts*, as JSON has them, as a record of the dataclass *kind*.

    Raises:
        RecordError: a field is missing, unknown, of another type or out of its limits.
    """
    readers = _readers(kind)
    if not isinstance(facts, Mapping):
        raise RecordError(f"found {facts!r:.60}; expected an object with {', '.join(list(readers)[:3])} and so on")
    if facts.keys() != readers.keys():
        unknown, missing = sorted(map(str, facts.keys() - readers.keys())), sorted(readers.keys() - facts.keys())
        found = (
            f"has {', '.join(unknown[:5])}, which is no field of it" if unknown else f"lacks {', '.join(missing[:5])}"
        )
        raise RecordError(f"{found}; expected the fields of {kind.__name__}")
    plain = _plain(kind)
    one_by_one = readers if plain is None or not plain.are_within(facts) else plain.others
    values = dict(facts)
    for name in one_by_one:
        try:
            values[name] = readers[name](facts[name])
        except _FieldError as error:
            raise RecordError(f"{name} is {facts[name]!r:.60}; expected {error}") from None
        except RecordError as error:
            raise RecordError(f"{name}: {error}") from None
    return kind(**values)


class _Plain(NamedTuple):
    """The fields of a dataclass that are one number each and never None: looked at together, since there are many."""

    of: Callable[[Any], tuple[Any, ...]]
    types: tuple[type, ...]
    lows: tuple[float, ...]
    highs: tuple[float, ...]
    others: tuple[str, ...]
    """All other fields."""

    def are_within(self, facts: Mapping[str, Any]) -> bool:
        """Return whether each has exactly its type and is within its limits."""
        values = self.of(facts)
        return (
            tuple(map(type, values)) == self.types
            and all(map(le, self.lows, values))
            and all(map(le, values, self.highs))
        )


@cache
def _plain(kind: Any) -> _Plain | None:
    found = {
        name: _limits(plain, mark)
        for name, plain, mark, is_nullable in declarations(kind)
        if plain in (int, float) and not is_nullable
    }
    if len(found) < 2:
        return None
    return _Plain(
        of=itemgetter(*found),
        types=tuple(each.kind for each in found.values()),
        lows=tuple(each.lowest for each in found.values()),
        highs=tuple(each.high for each in found.values()),
        others=tuple(name for name, *_ in declarations(kind) if name not in found),
    )


def _or_none(reader: Reader, value: Any) -> Any:
    return None if value is None else reader(value)


def _of_values(kind: Any, column: Column) -> Reader:
    if kind is bool:
        return _boolean
    if kind is str:
        return _text(column.choices)
    if kind in (int, float):
        return _limits(kind, column).read
    return _limits(get_args(kind)[0], column).read_all


def _boolean(value: Any) -> bool:
    if type(value) is not bool:
        raise _FieldError("true or false")
    return value


def _text(choices: Sequence[str]) -> Reader:
    def read(value: Any) -> str:
        if type(value) is not str or "\0" in value or (choices and value not in choices):
            raise _FieldError(f"one of {', '.join(choices)}" if choices else "text without a zero byte")
        return value

    return read


class _Limits(NamedTuple):
    """What numbers a field holds; of floats neither infinite ones nor none."""

    kind: type
    low: float
    high: float
    above: float | None

    def __str__(self) -> str:
        limits = f"above {self.above}" if self.above is not None else f"in [{self.low:.12g}, {self.high:.12g}]"
        return f"{'a whole number' if self.kind is int else 'a finite number'} {limits}"

    @property
    def lowest(self) -> float:
        """The lowest number that is allowed itself."""
        if self.above is None:
            return self.low
        return self.above + 1 if self.kind is int else nextafter(self.above, inf)

    def read(self, value: Any) -> Any:
        """Return one number; a bool is none, though Python takes it for an int."""
        is_one = type(value) is self.kind or (self.kind is float and type(value) is int)
        if not is_one or not self.low <= value <= self.high or value == self.above:
            raise _FieldError(str(self))
        return float(value) if self.kind is float else value

    def read_all(self, values: Any) -> tuple[Any, ...]:
        """Return a list of them: looked at one by one only if the list as a whole is odd, since lists are long."""
        if not isinstance(values, list | tuple):
            raise _FieldError("a list of numbers")
        if set(map(type, values)) == {self.kind}:
            lowest, total = min(values), sum(values)
            if self.low <= lowest and max(values) <= self.high and lowest != self.above and isfinite(total):
                return tuple(values)
        return tuple(map(self.read, values))


def _limits(kind: type, column: Column) -> _Limits:
    biggest = _BIGGEST.get(column.sql.removesuffix("[]") or "BIGINT", 0) if kind is int else 1.7e308
    above, low, high = column.above, column.at_least, column.at_most
    return _Limits(
        kind=kind,
        low=low if low is not None else (above if above is not None else -biggest),
        high=high if high is not None else biggest,
        above=above,
    )
