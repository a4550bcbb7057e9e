"""Mark the evaluation of each cell that counts: the newest one that the present benchmark file asks for."""

import duckdb
import pyarrow as pa

from tta_pipeline.results.database.schema import CELL
from tta_pipeline.results.evaluation_record import WITHOUT_FILE
from tta_pipeline.results.expected_results import ExpectedPlace, ExpectedResults, ExperimentGroup

_TYPES = {"mean": pa.list_(pa.float64()), "std": pa.list_(pa.float64())}
_PART = "CASE WHEN split_part(folder, '/', 3) = 'evaluations' THEN '' ELSE split_part(folder, '/', 3) END"
_GROUPS = f"""
SELECT DISTINCT benchmark, {_PART} AS part, experiment FROM evaluations WHERE protocol <> '{WITHOUT_FILE}'
"""  # noqa: S608 - the words are ours
_PLACED = f"""
SELECT
    e.folder, e.sequence, {", ".join(f"e.{column}" for column in CELL)},
    CASE WHEN g.benchmark IS NOT NULL THEN
        a.folder IS NOT NULL AND a.shift_set = e.shift_set AND a.model = e.model
        AND coalesce(e.decided_sha256 = a.decided_sha256, TRUE)
        AND coalesce(e.weights_sha256 = a.weights_sha256, TRUE)
        AND coalesce(e.mean = a.mean, TRUE) AND coalesce(e.std = a.std, TRUE)
    END AS is_in_file
FROM evaluations AS e
LEFT JOIN known_groups AS g ON
    g.benchmark = e.benchmark AND g.part = {_PART} AND g.experiment = e.experiment AND e.protocol <> '{WITHOUT_FILE}'
LEFT JOIN asked_places AS a ON a.folder = e.folder
"""  # noqa: S608
_MARKED = f"""
SELECT
    folder, sequence, is_in_file,
    is_in_file IS DISTINCT FROM FALSE
        AND sequence = max(CASE WHEN is_in_file IS DISTINCT FROM FALSE THEN sequence END)
            OVER (PARTITION BY {", ".join(CELL)})
        AND sequence > coalesce(aside.last, 0) AS is_latest
FROM ({_PLACED}) AS placed
LEFT JOIN (SELECT folder, max(sequence) AS last FROM set_aside GROUP BY folder) AS aside USING (folder)
"""  # noqa: S608
_MARK = f"""
UPDATE evaluations SET is_in_file = marked.is_in_file, is_latest = marked.is_latest
FROM ({_MARKED}) AS marked
WHERE marked.folder = evaluations.folder AND marked.sequence = evaluations.sequence
    AND (marked.is_in_file IS DISTINCT FROM evaluations.is_in_file OR marked.is_latest <> evaluations.is_latest)
"""  # noqa: S608


def mark_latest(connection: duckdb.DuckDBPyConnection, asked: ExpectedResults) -> None:
    """Mark the evaluations that the present files ask for, and the newest of them for each cell.

    If a newer record of a folder is set aside, none of its evaluations is the latest: an older one never replaces it.
    """
    groups = [ExperimentGroup(*row) for row in connection.execute(_GROUPS).fetchall()]
    known = [group for group in groups if asked.knows(group)]
    columns = {
        name: pa.array([group[at] for group in known], pa.string()) for at, name in enumerate(ExperimentGroup._fields)
    }
    connection.register("known_groups", pa.table(columns))
    connection.register("asked_places", _places_table(asked))
    try:
        connection.execute(_MARK)
    finally:
        connection.unregister("known_groups")
        connection.unregister("asked_places")
    connection.execute("DELETE FROM asked")
    connection.execute("INSERT INTO asked VALUES (?)", [asked.sha256])


def _places_table(asked: ExpectedResults) -> pa.Table:
    """Return the asked places as a table."""
    columns = {name: [place[number] for place in asked.places] for number, name in enumerate(ExpectedPlace._fields)}
    return pa.table({name: pa.array(values, _TYPES.get(name, pa.string())) for name, values in columns.items()})


def marked_sha256(connection: duckdb.DuckDBPyConnection) -> str | None:
    """Return `Asked.sha256` as of the last marking of the evaluations."""
    row = connection.execute("SELECT sha256 FROM asked").fetchone()
    return str(row[0]) if row else None
