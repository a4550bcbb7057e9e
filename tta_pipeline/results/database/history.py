"""The view `history_comparison` of record files, for checks that must not wait for the database to be published."""

from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import duckdb
import pyarrow as pa

from tta_pipeline.results.database.record_listing import ListedRecord, Stamp
from tta_pipeline.results.database.rows import rows_of_records
from tta_pipeline.results.database.schema import history_views
from tta_pipeline.results.records import Record, earlier_records, latest_record

_MAX_EARLIER = 50
"""Number of earlier records to read: the cost stays the same for a cell with a history of years."""
_NO_STAMP = Stamp(0, 0, 0, 0)
_NEWEST_IS_LATEST = "SELECT *, sequence = max(sequence) OVER (PARTITION BY folder) AS is_latest FROM read"


class Compared(NamedTuple):
    """Columns of `history_comparison`."""

    corruption: str
    severity: int
    conditions: str | None
    num_samples: int
    images_per_s: float
    error: float
    num_earlier: int
    num_earlier_alike: int
    usual_images_per_s: float | None
    usual_error: float | None
    other_errors: Sequence[float] | None
    has_drifted: bool


class HistoryComparison:
    """Compares newest evaluations with earlier ones; one object for all cells of a run, since views are made once."""

    def __init__(self) -> None:
        self._connection: duckdb.DuckDBPyConnection | None = None

    def compare(self, results: Path, names: Sequence[str]) -> tuple[Compared, ...]:
        """Return the newest evaluation of each of *names* in the folder *results*, compared with the 50 before it.

        Those without a record are left out, and so are earlier records that are damaged, since publishing names them.

        Raises:
            RecordError: the newest record of a name is damaged or foreign.
        """
        read = [(listed, record) for name in names for listed, record in _read_history(results, name)]
        if not read:
            return ()
        return self._ask(next(rows for table, rows in rows_of_records(read) if table == "evaluations"))

    def _ask(self, rows: pa.Table) -> tuple[Compared, ...]:
        if self._connection is None:
            self._connection = _connect(rows)
        connection = self._connection.cursor()
        connection.register("read", rows)
        connection.execute(f"BEGIN; DELETE FROM evaluations; INSERT INTO evaluations {_NEWEST_IS_LATEST}; COMMIT")  # noqa: S608
        found = connection.execute(f"SELECT {', '.join(Compared._fields)} FROM history_comparison")  # noqa: S608
        return tuple(Compared(*row) for row in found.fetchall())


def _connect(rows: pa.Table) -> duckdb.DuckDBPyConnection:
    """Return a database in memory with the view, of a table that has the columns of *rows*."""
    connection = duckdb.connect(config={"threads": 1})  # starting more takes longer than the question
    connection.register("read", rows)
    connection.execute(f"BEGIN; CREATE TABLE evaluations AS {_NEWEST_IS_LATEST}; {history_views()}; COMMIT")
    return connection


def _read_history(results: Path, name: str) -> Iterator[tuple[ListedRecord, Record]]:
    newest = latest_record(results, kind="evaluations", name=name)
    if newest is not None:
        earlier = islice(earlier_records(results, kind="evaluations", name=name), _MAX_EARLIER)
        for record in (newest, *earlier):
            yield ListedRecord(name, record.sequence, _NO_STAMP), record
