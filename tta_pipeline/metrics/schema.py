"""The text of the schema: tables, constants and views as SQL, and the table that follows from what an evaluation is."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import NamedTuple

import duckdb
import pyarrow as pa

from tta_pipeline.records.declared import Field
from tta_pipeline.records.evaluation import RULES, columns

CELL = ("benchmark", "experiment", "subset", "seed", "stream", "position", "corruption", "severity")
"""What the newest evaluation is the newest of."""
_ARROW: Mapping[str, pa.DataType] = {
    "BIGINT": pa.int64(), "INTEGER": pa.int32(), "DOUBLE": pa.float64(), "BOOLEAN": pa.bool_(),
    "BIGINT[]": pa.list_(pa.int64()), "DOUBLE[]": pa.list_(pa.float64()), "TIMESTAMPTZ": pa.timestamp("us", "UTC"),
}  # fmt: skip


class _Frame(NamedTuple):
    """A column that is not of the facts of a record."""

    name: str
    sql: str
    constraint: str
    comment: str


_FRAME = (
    _Frame("folder", "VARCHAR", "NOT NULL", "Of its record, relative to the data root"),
    _Frame("sequence", "INTEGER", "NOT NULL CHECK (sequence > 0)",
           "Number of the record in its folder; of evaluations of the same thing the highest is the latest"),
    _Frame("record_version", "INTEGER", "NOT NULL CHECK (record_version > 0)",
           "Of the record; one of version 1 does not prove itself by a hash"),
    _Frame("run_id", "VARCHAR", "NOT NULL", "Dagster run that made it"),
    _Frame("is_latest", "BOOLEAN", "NOT NULL DEFAULT TRUE",
           "Whether no later one of the same experiment, subset, seed, stream, position and cell is there, and no "
           "later record of its folder is set aside; kept up when records are added"),
)  # fmt: skip
_BEHIND = (
    _Frame("conditions", "VARCHAR", "",
           "What speed depends on besides model, method and data: only equal ones compare; NULL where it is not known"),
    _Frame("started_at", "TIMESTAMPTZ", "NOT NULL", "UTC, for people; never for order"),
    _Frame("versions", "JSON", "NOT NULL", "Python, platform, host and packages"),
)  # fmt: skip


@cache
def schema() -> str:
    """Return the statements that make an empty database."""
    tables, baselines, views = (files(__package__).joinpath(f"{name}.sql").read_text() for name in _FILES)
    return "\n".join((tables, "\n".join(_evaluations()), baselines, views))


_FILES = ("schema", "baselines", "views")


@cache
def schema_version() -> str:
    """Return the version of the schema: a hash of its text, so that no change of it is ever overlooked."""
    return hashlib.sha256(schema().encode()).hexdigest()[:12]


def create_schema(connection: duckdb.DuckDBPyConnection) -> None:
    """Make the empty database."""
    connection.execute("BEGIN")  # else each of the many comments would be written to the disk by itself
    connection.execute(schema())
    connection.execute("INSERT INTO schema_version VALUES (?)", [schema_version()])
    _comment_columns_of_views(connection)
    connection.execute("COMMIT")


def evaluations_arrow() -> pa.Schema:
    """Return the types of the rows that are put into `evaluations`; `is_latest` is left to its default."""
    names = [(frame.name, frame.sql) for frame in _FRAME if frame.name != "is_latest"]
    names += [(field.name, field.sql) for field in columns()]
    names += [(frame.name, frame.sql) for frame in _BEHIND]
    return pa.schema([(name, _ARROW.get(sql, pa.string())) for name, sql in names])


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
        "comes to twice has two. Folder and sequence are the key';"
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
        return  # the reader of records holds each number of a list to its limits
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
    """Give each column of a view that has no comment of its own that of the evaluations' or shard sets' column."""
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
        # Takes no bound value; the text is ours.
        connection.execute(f"COMMENT ON COLUMN {view}.{column} IS {_quoted(comment)}")
