"""Schema of the database: tables, constants and views from SQL files, and tables from declared record fields."""

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import NamedTuple

import duckdb
import pyarrow as pa

from tta_pipeline.results.database.schema_version import quoted, schema_version
from tta_pipeline.results.evaluation_record import RULES, columns
from tta_pipeline.results.record_fields import Field, columns_of
from tta_pipeline.results.training_record import TrainingEpoch, TrainingRun
from tta_pipeline.results.tuning_record import choice_columns, trial_columns, tuning_columns

_ARROW: Mapping[str, pa.DataType] = {
    "BIGINT": pa.int64(), "INTEGER": pa.int32(), "DOUBLE": pa.float64(), "BOOLEAN": pa.bool_(),
    "BIGINT[]": pa.list_(pa.int64()), "DOUBLE[]": pa.list_(pa.float64()), "VARCHAR[]": pa.list_(pa.string()),
    "TIMESTAMPTZ": pa.timestamp("us", "UTC"),
}  # fmt: skip


class _ExtraColumn(NamedTuple):
    """A column that does not come from the facts of a record."""

    name: str
    sql: str
    constraint: str
    comment: str


_FILE = _ExtraColumn("file", "VARCHAR", "NOT NULL", "File of the result, relative to the data root")
_RUN = _ExtraColumn("run_id", "VARCHAR", "NOT NULL", "Run that made it")
_WHEN = _ExtraColumn("started_at", "TIMESTAMPTZ", "NOT NULL", "Start time in UTC, for display; never used for ordering")
_FRAME = (
    _FILE,
    _ExtraColumn("source", "VARCHAR", "", "Name under which results of others were added; NULL for your own results"),
    _RUN,
    _ExtraColumn("made_as", "VARCHAR", "NOT NULL", "Name of the experiment when it was evaluated"),
    _ExtraColumn("counts", "BOOLEAN", "NOT NULL DEFAULT FALSE",
           "Whether it is in the experiment's plan, which covers the current code, data, weights and settings"),
    _ExtraColumn("num_timings", "INTEGER", "",
           "Timings of the same predictions under the same conditions; NULL unless it counts"),
    _ExtraColumn("median_wall_s", "DOUBLE", "",
           "Median wall_s of these timings, of those without other load if there are any; NULL unless it counts"),
    _ExtraColumn("under_load", "BOOLEAN", "",
           "Whether other processes kept a fifth of the cores busy in all of these timings; NULL unless it counts"),
    _ExtraColumn("devices_differ_by", "DOUBLE", "",
           "Difference of the errors of results with the same fingerprint and other predictions, as another card makes "
           "them, in [0, 1]; NULL if there are none"),
)  # fmt: skip
_DECIDED_AT_PUBLICATION = ("counts", "num_timings", "median_wall_s", "under_load", "devices_differ_by")
_BEHIND = (
    _ExtraColumn("conditions", "VARCHAR", "NOT NULL",
           "Conditions that affect speed besides model, method and data; compare speeds only under equal conditions"),
    _WHEN,
)  # fmt: skip
_IS_CHOSEN = _ExtraColumn("is_chosen", "BOOLEAN", "NOT NULL", "Whether the tuning chose the values of the trial")


def _of_runs(what: str) -> tuple[_ExtraColumn, ...]:
    """Return the columns in front of a table with results of *what*."""
    counts = f"Whether it is the latest {what}; older ones count nowhere"
    return (_FILE, _RUN, _ExtraColumn("counts", "BOOLEAN", "NOT NULL DEFAULT FALSE", counts))


class _DeclaredTable(NamedTuple):
    """A table whose columns come from a record's fields, between the columns of *frame* and *behind*."""

    name: str
    comment: str
    frame: Sequence[_ExtraColumn]
    fields: Sequence[Field]
    behind: Sequence[_ExtraColumn] = ()
    checks: Sequence[str] = ()


_DECLARED = (
    _DeclaredTable(
        "evaluations",
        "One row for each pass of one experiment over one cell; a cell that a stream visits twice has two rows. File, "
        "corruption, severity and experiment are the key",
        _FRAME, columns(), _BEHIND, tuple(rule.sql for rule in RULES if rule.sql),
    ),
    _DeclaredTable(
        "training_runs",
        "One row for each training of a source model; a resumed training is one run. The file is the key",
        _of_runs("training of the model"), columns_of(TrainingRun), (_WHEN,),
        ("num_epochs_done <= num_epochs", "best_epoch <= num_epochs_done"),
    ),
    _DeclaredTable(
        "training_epochs",
        "One row for each epoch of each of training_runs. File and epoch are the key",
        (_FILE,), columns_of(TrainingEpoch),
    ),
    _DeclaredTable(
        "tunings",
        "One row for each choice of hyperparameters on held-out shifts. The file is the key",
        _of_runs("tuning of the experiment"), tuning_columns(), (_WHEN,),
        ("num_trials <= num_combinations", "num_trials <= budget"),
    ),
    _DeclaredTable(
        "tuning_trials",
        "One row for each combination that a tuning tried. File and trial are the key",
        (_FILE, _IS_CHOSEN), trial_columns(),
    ),
    _DeclaredTable(
        "tuning_criteria",
        "One row for what each criterion of a tuning would choose, with its gap to the oracle where the tuning "
        "compared them. File, criterion and images are the key",
        (_FILE,), choice_columns(),
    ),
)  # fmt: skip


@cache
def schema() -> str:
    """Return the statements that create an empty database."""
    declared = [statement for table in _DECLARED for statement in _statements(table)]
    return "\n".join((_text("schema"), *declared, _text("baselines"), _text("views")))


def _text(name: str) -> str:
    return files(__package__).joinpath(f"{name}.sql").read_text()


def create_schema(connection: duckdb.DuckDBPyConnection) -> None:
    """Create the empty database."""
    connection.execute("BEGIN")  # otherwise each of the many comments would be written to the disk separately
    connection.execute(schema())
    connection.execute("INSERT INTO publication VALUES (?, 0, '')", [schema_version()])
    _comment_columns_of_views(connection)
    connection.execute("COMMIT")


def arrow_schema(table: str) -> pa.Schema:
    """Return the Arrow schema of the rows of a declared *table*, without columns that are filled in later."""
    (found,) = (each for each in _DECLARED if each.name == table)
    names = [(frame.name, frame.sql) for frame in found.frame if frame.name not in _DECIDED_AT_PUBLICATION]
    names += [(field.name, field.sql) for field in found.fields]
    names += [(frame.name, frame.sql) for frame in found.behind]
    return pa.schema([(name, _ARROW.get(sql, pa.string())) for name, sql in names])


def _statements(table: _DeclaredTable) -> Iterator[str]:
    """Yield the statements that create *table* with a comment on each column."""
    lines = [f"{frame.name} {frame.sql} {frame.constraint}".rstrip() for frame in table.frame]
    lines += [_definition(field) for field in table.fields]
    lines += [f"{frame.name} {frame.sql} {frame.constraint}".rstrip() for frame in table.behind]
    lines += [f"CHECK ({check})" for check in table.checks]
    body = ",\n".join(f"    {line}" for line in lines)
    yield f"CREATE TABLE {table.name} (\n{body}\n);"
    yield f"COMMENT ON TABLE {table.name} IS {quoted(table.comment)};"
    comments = [(frame.name, frame.comment) for frame in (*table.frame, *table.behind)]
    comments += [(field.name, field.column.comment) for field in table.fields]
    for name, comment in comments:
        yield f"COMMENT ON COLUMN {table.name}.{name} IS {quoted(comment)};"


def _definition(field: Field) -> str:
    null = "" if field.is_nullable else " NOT NULL"
    checks = " AND ".join(_checks(field))
    return f"{field.name} {field.sql}{null}{f' CHECK ({checks})' if checks else ''}"


def _checks(field: Field) -> Iterator[str]:
    name, column = field.name, field.column
    if field.sql.endswith("[]"):
        return  # the reader of records checks the limits of each number in a list
    if column.choices and field.sql == "VARCHAR":
        yield f"{name} IN ({', '.join(map(quoted, column.choices))})"
    for sign, limit in ((">=", column.at_least), (">", column.above), ("<=", column.at_most)):
        if limit is not None:
            yield f"{name} {sign} {limit:g}"
    if field.sql == "DOUBLE":
        yield f"isfinite({name})"


def _comment_columns_of_views(connection: duckdb.DuckDBPyConnection) -> None:
    """Give each uncommented column of a view the comment of a table's column with that name.

    The table is the first of `evaluations`, `shard_sets`, `training_runs` and `tunings` with such a column.
    """
    missing: Sequence[tuple[str, str, str]] = connection.execute(
        """
        SELECT c.table_name, c.column_name,
               any_value(t.comment ORDER BY t.table_name)
        FROM duckdb_columns() AS c
        JOIN duckdb_views() AS v ON v.view_name = c.table_name AND NOT v.internal
        JOIN duckdb_columns() AS t ON t.column_name = c.column_name AND
            t.table_name IN ('evaluations', 'shard_sets', 'training_runs', 'tunings')
        WHERE c.comment IS NULL
        GROUP BY ALL
        """
    ).fetchall()
    for view, column, comment in missing:
        # COMMENT ON takes no bound value; the text is ours.
        connection.execute(f"COMMENT ON COLUMN {view}.{column} IS {quoted(comment)}")
