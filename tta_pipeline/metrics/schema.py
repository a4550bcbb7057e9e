"""The text of the schema: tables, constants and views as SQL, and the table of declared evaluation fields."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import NamedTuple

import duckdb
import pyarrow as pa

from tta_pipeline.records.declared import Field
from tta_pipeline.records.evaluation import RULES, columns
from tta_pipeline.shifts.loading import shipped_sets

CELL = ("benchmark", "shift_set", "experiment", "subset", "seed", "stream", "position", "corruption", "severity")
"""Columns that identify a cell; the newest evaluation is the newest with the same values in them."""
_ARROW: Mapping[str, pa.DataType] = {
    "BIGINT": pa.int64(), "INTEGER": pa.int32(), "DOUBLE": pa.float64(), "BOOLEAN": pa.bool_(),
    "BIGINT[]": pa.list_(pa.int64()), "DOUBLE[]": pa.list_(pa.float64()), "TIMESTAMPTZ": pa.timestamp("us", "UTC"),
}  # fmt: skip


class _Frame(NamedTuple):
    """A column that does not come from the facts of a record."""

    name: str
    sql: str
    constraint: str
    comment: str


_FRAME = (
    _Frame("folder", "VARCHAR", "NOT NULL", "Folder of the record, relative to the data root"),
    _Frame("sequence", "INTEGER", "NOT NULL CHECK (sequence > 0)",
           "Number of the record in its folder; the highest is the latest evaluation of the same cell"),
    _Frame("record_version", "INTEGER", "NOT NULL CHECK (record_version > 0)",
           "Version of the record's format; a record of version 1 has no hash to prove it"),
    _Frame("run_id", "VARCHAR", "NOT NULL", "Dagster run that made the evaluation"),
    _Frame("is_latest", "BOOLEAN", "NOT NULL DEFAULT TRUE",
           "Whether no later evaluation of the same experiment, subset, seed, stream, position and cell exists, and no "
           "later record of its folder is set aside; updated when records are added"),
)  # fmt: skip
_BEHIND = (
    _Frame("conditions", "VARCHAR", "",
           "What speed depends on besides model, method and data; speeds compare only if equal; NULL where not known"),
    _Frame("started_at", "TIMESTAMPTZ", "NOT NULL", "Start time in UTC, for display; never used for ordering"),
    _Frame("versions", "JSON", "NOT NULL", "Versions of Python, platform, host and packages"),
)  # fmt: skip


@cache
def schema() -> str:
    """Return the statements that make an empty database."""
    tables, baselines, views = (files(__package__).joinpath(f"{name}.sql").read_text() for name in _FILES)
    return "\n".join((tables, "\n".join(_evaluations()), baselines, "\n".join(_published_shifts()), views))


_FILES = ("schema", "baselines", "views")


@cache
def schema_version() -> str:
    """Return the version of the schema: a hash of its text, so that no change is overlooked."""
    return hashlib.sha256(schema().encode()).hexdigest()[:12]


def create_schema(connection: duckdb.DuckDBPyConnection) -> None:
    """Create the empty database."""
    connection.execute("BEGIN")  # otherwise each of the many comments would be written to the disk separately
    connection.execute(schema())
    connection.execute("INSERT INTO schema_version VALUES (?)", [schema_version()])
    _comment_columns_of_views(connection)
    connection.execute("COMMIT")


def evaluations_arrow() -> pa.Schema:
    """Return the types of rows for `evaluations`; `is_latest` is left to its default."""
    names = [(frame.name, frame.sql) for frame in _FRAME if frame.name != "is_latest"]
    names += [(field.name, field.sql) for field in columns()]
    names += [(frame.name, frame.sql) for frame in _BEHIND]
    return pa.schema([(name, _ARROW.get(sql, pa.string())) for name, sql in names])


def _published_shifts() -> Iterator[str]:
    """Yield the statement that fills the table `published_shifts` for each shift set that comes with the project."""
    for shift_set in shipped_sets().values():
        rows = []
        for position, name in enumerate(shift_set.names, start=1):
            family = shift_set.family_of(name)
            family = "NULL" if family is None else _quoted(family)
            in_mean = str(name in shift_set.in_mean).upper()
            rows.append(f"({_quoted(shift_set.name)}, {_quoted(name)}, {position}, {family}, {in_mean})")
        yield f"INSERT INTO published_shifts VALUES {', '.join(rows)};"  # noqa: S608 - the names are ours


def _evaluations() -> Iterator[str]:
    """Yield the statements that make the table `evaluations` with a comment on each of its columns."""
    lines = [f"{frame.name} {frame.sql} {frame.constraint}".rstrip() for frame in _FRAME]
    lines += [_definition(field) for field in columns()]
    lines += [f"{frame.name} {frame.sql} {frame.constraint}".rstrip() for frame in _BEHIND]
    lines += [f"CHECK ({rule.sql})" for rule in RULES if rule.sql]
    body = ",\n".join(f"    {line}" for line in lines)
    yield f"CREATE TABLE evaluations (\n{body}\n);"
    yield (
        "COMMENT ON TABLE evaluations IS 'One row for each pass of one experiment over one cell; a cell that a stream "
        "visits twice has two. Folder and sequence are the key';"
    )
    comments = [(frame.name, frame.comment) for frame in (*_FRAME, *_BEHIND)]
    comments += [(field.name, field.column.comment) for field in columns()]
    for name, comment in comments:
        yield f"COMMENT ON COLUMN evaluations.{name} IS {_quoted(comment)};"


def _definition(field: Field) -> str:
    null = "" if field.is_nullable else " NOT NULL"
    checks = " AND ".join(_checks(field))
    return f"{field.name} {field.sql}{null}{f' CHECK ({checks})' if checks else ''}"


def _checks(field: Field) -> Iterator[str]:
    name, column = field.name, field.column
    if field.sql.endswith("[]"):
        return  # the reader of records checks the limits of each number in a list
    if column.choices and field.sql == "VARCHAR":
        yield f"{name} IN ({', '.join(map(_quoted, column.choices))})"
    for sign, limit in ((">=", column.at_least), (">", column.above), ("<=", column.at_most)):
        if limit is not None:
            yield f"{name} {sign} {limit:g}"
    if field.sql == "DOUBLE":
        yield f"isfinite({name})"


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _comment_columns_of_views(connection: duckdb.DuckDBPyConnection) -> None:
    """Comment each uncommented column of a view as the column of that name in `evaluations` or `shard_sets`."""
    missing: Sequence[tuple[str, str, str]] = connection.execute(
        """
        SELECT c.table_name, c.column_name, any_value(t.comment ORDER BY t.table_name)
        FROM duckdb_columns() AS c
        JOIN duckdb_views() AS v ON v.view_name = c.table_name AND NOT v.internal
        JOIN duckdb_columns() AS t ON t.column_name = c.column_name AND t.table_name IN ('evaluations', 'shard_sets')
        WHERE c.comment IS NULL
        GROUP BY ALL
        """
    ).fetchall()
    for view, column, comment in missing:
        # COMMENT ON takes no bound value; the text is ours.
        connection.execute(f"COMMENT ON COLUMN {view}.{column} IS {_quoted(comment)}")
