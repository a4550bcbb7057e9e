"""Mark the records that count: of each cell the newest evaluation that the present benchmark file asks for."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import duckdb
import pyarrow as pa

from tta_pipeline.results.database.schema import CELL
from tta_pipeline.results.evaluation_record import WITHOUT_FILE
from tta_pipeline.results.expected_results import ExpectedPlace, ExpectedResults, ExperimentGroup

_TYPES = {"mean": pa.list_(pa.float64()), "std": pa.list_(pa.float64())}
_PART = "CASE WHEN split_part(folder, '/', 3) = 'evaluations' THEN '' ELSE split_part(folder, '/', 3) END"
_CELL = ", ".join(CELL)
_ROWS = f"""
SELECT
    rowid AS row, folder, sequence, {_CELL}, protocol, model, decided_sha256, weights_sha256, mean, std, is_in_file,
    is_latest
FROM evaluations
"""  # noqa: S608
# The rows of a cell lie in folders of its experiment: with `seeds` or without, in one folder or in several.
_OF_CHANGED = """
SEMI JOIN (SELECT DISTINCT benchmark, experiment, corruption FROM evaluations SEMI JOIN changed USING (folder))
    USING (benchmark, experiment, corruption)
"""
_GROUPS = f"""
SELECT DISTINCT benchmark, {_PART} AS part, experiment FROM concerned WHERE protocol <> '{WITHOUT_FILE}'
"""  # noqa: S608 - the words are ours
_PLACED = f"""
SELECT
    e.row, e.sequence, e.folder, {", ".join(f"e.{column}" for column in CELL)},
    e.is_in_file AS was_in_file, e.is_latest AS was_latest,
    CASE WHEN g.benchmark IS NOT NULL THEN
        a.folder IS NOT NULL AND a.shift_set = e.shift_set AND a.model = e.model
        AND e.decided_sha256 = a.decided_sha256
        AND coalesce(e.weights_sha256 = a.weights_sha256, TRUE)
        AND coalesce(e.mean = a.mean, TRUE) AND coalesce(e.std = a.std, TRUE)
    END AS is_in_file
FROM concerned AS e
LEFT JOIN known_groups AS g ON
    g.benchmark = e.benchmark AND g.part = {_PART} AND g.experiment = e.experiment AND e.protocol <> '{WITHOUT_FILE}'
LEFT JOIN asked_places AS a ON a.folder = e.folder
"""  # noqa: S608
_MARKED = f"""
CREATE OR REPLACE TEMP TABLE marked AS
SELECT row, is_in_file, is_latest FROM (
    SELECT
        row, is_in_file, was_in_file, was_latest,
        is_in_file IS DISTINCT FROM FALSE
            AND sequence = max(CASE WHEN is_in_file IS DISTINCT FROM FALSE THEN sequence END)
                OVER (PARTITION BY {_CELL})
            AND sequence > coalesce(aside.last, 0) AS is_latest
    FROM ({_PLACED}) AS placed
    LEFT JOIN (SELECT folder, max(sequence) AS last FROM set_aside GROUP BY folder) AS aside USING (folder)
)
WHERE is_in_file IS DISTINCT FROM was_in_file OR is_latest <> was_latest
"""  # noqa: S608
_NEWEST_OF = {"training_runs": "model", "tunings": "experiment"}
"""Tables of which the newest record counts, each with the column that names what it is of."""
_MARK_NEWEST = """
UPDATE {table} SET is_latest = marked.is_latest FROM (
    SELECT
        t.rowid AS row,
        sequence = max(sequence) OVER (PARTITION BY benchmark, shift_set, {column})
            AND sequence > coalesce(aside.last, 0) AS is_latest
    FROM {table} AS t
    LEFT JOIN (SELECT folder, max(sequence) AS last FROM set_aside GROUP BY folder) AS aside USING (folder)
) AS marked
WHERE marked.row = {table}.rowid AND marked.is_latest <> {table}.is_latest
"""
_MARK = """
UPDATE evaluations SET is_in_file = marked.is_in_file, is_latest = marked.is_latest
FROM marked WHERE marked.row = evaluations.rowid
"""


def mark_latest(
    connection: duckdb.DuckDBPyConnection, asked: ExpectedResults, *, folders: Iterable[str] | None = None
) -> None:
    """Mark the evaluations that the present files ask for, the newest of them for each cell, and other newest records.

    If a newer record of a folder is set aside, no other record of it is the latest: an older one never replaces it.

    Args:
        connection: The database.
        asked: Results that the present files ask for.
        folders: Folders with other records than at the last marking, if the files ask for the same results; None: all.
    """
    changed = pa.table({"folder": pa.array(sorted(set(folders or ())), pa.string())})
    with _registered(connection, changed=changed):
        some = "" if folders is None else _OF_CHANGED
        connection.execute(f"CREATE OR REPLACE TEMP TABLE concerned AS {_ROWS} {some}")
    groups = [ExperimentGroup(*row) for row in connection.execute(_GROUPS).fetchall()]
    known = [group for group in groups if asked.knows(group)]
    columns = {
        name: pa.array([group[at] for group in known], pa.string()) for at, name in enumerate(ExperimentGroup._fields)
    }
    with _registered(connection, known_groups=pa.table(columns), asked_places=_places_table(asked)):
        connection.execute(_MARKED)
    connection.execute(_MARK)
    for table, column in _NEWEST_OF.items():
        connection.execute(_MARK_NEWEST.format(table=table, column=column))
    connection.execute("DELETE FROM asked")
    connection.execute("INSERT INTO asked VALUES (?)", [asked.sha256])


@contextmanager
def _registered(connection: duckdb.DuckDBPyConnection, **tables: pa.Table) -> Iterator[None]:
    """Let the database read *tables* by name in the block."""
    for name, table in tables.items():
        connection.register(name, table)
    try:
        yield
    finally:
        for name in tables:
            connection.unregister(name)


def _places_table(asked: ExpectedResults) -> pa.Table:
    """Return the asked places as a table."""
    columns = {name: [place[number] for place in asked.places] for number, name in enumerate(ExpectedPlace._fields)}
    return pa.table({name: pa.array(values, _TYPES.get(name, pa.string())) for name, values in columns.items()})


def marked_sha256(connection: duckdb.DuckDBPyConnection) -> str | None:
    """Return `Asked.sha256` as of the last marking of the evaluations."""
    row = connection.execute("SELECT sha256 FROM asked").fetchone()
    return str(row[0]) if row else None
