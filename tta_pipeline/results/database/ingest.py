"""Ingestion of records into the database, in columnar batches; records that do not fit are set aside one by one."""

import hashlib
import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import duckdb
import pyarrow as pa

from tta_pipeline.errors import RecordError
from tta_pipeline.results.database.record_listing import ListedRecord, RecordListing
from tta_pipeline.results.database.rows import Read, Tables, rows_of_records, set_aside_rows
from tta_pipeline.results.records import file_sha256, parse_record, read_record_bytes
from tta_pipeline.util.garbage_collection import gc_paused
from tta_pipeline.util.processes import Workers
from tta_pipeline.util.progress import Reporter

_BATCH_SIZE = 1_000
_CHECKPOINT_EVERY = 40
"""Number of batches between checkpoints of the database; until then they are held in memory."""
_MIN_FOR_PROCESSES = 5_000
"""Number of records from which reading uses processes; fewer are read before processes have started."""
_MAX_PROCESSES = 8
"""Most processes that read; more would read faster than DuckDB inserts the rows."""
_ROW_ERRORS = (
    duckdb.ConstraintException, duckdb.DataError, duckdb.NotSupportedError, duckdb.ProgrammingError,
    pa.ArrowException, KeyError, TypeError, AttributeError, ValueError, OverflowError,
)  # fmt: skip
"""Errors of a row that does not fit; any other error concerns the file or the disk."""


class RefusedRecord(NamedTuple):
    """A record that is set aside."""

    listed: ListedRecord
    reason: str
    file_sha256: str | None


class ReadRecords(NamedTuple):
    """A batch of records: the rows of intact records, and the refused records."""

    tables: Tables
    num_intact: int
    refused: Sequence[RefusedRecord]


def add_records(
    connection: duckdb.DuckDBPyConnection,
    data_root: Path,
    listed: RecordListing | Sequence[ListedRecord],
    progress: Reporter,
) -> int:
    """Insert *listed* records into the database, and set damaged or foreign ones aside; return the number inserted.

    Raises:
        duckdb.Error: the file or the disk failed.
    """
    report = progress("metrics.duckdb", len(listed), unit="records")
    num_added = 0
    for number, (piece, read) in enumerate(_read_ahead(data_root, listed), start=1):
        num_added += _insert_piece(connection, data_root, piece, read)
        report.advance(len(piece))
        if number % _CHECKPOINT_EVERY == 0:
            connection.execute("CHECKPOINT")
    return num_added


def read_batch(data_root: Path, piece: Sequence[ListedRecord]) -> ReadRecords:
    """Read the records of *piece*; may run in another process.

    Raises:
        Exception: one of `_ROW_ERRORS`: a record does not fit its table.
    """
    with gc_paused():
        return _read_batch(data_root, piece)  # its objects are gone before the collector would search them


def _read_batch(data_root: Path, piece: Sequence[ListedRecord]) -> ReadRecords:
    intact: list[Read] = []
    refused: list[RefusedRecord] = []
    for listed in piece:
        known = listed._replace(stamp=listed.stamp.trusted)
        path = data_root / listed.path
        try:
            data = read_record_bytes(path)
        except RecordError as error:
            refused.append(RefusedRecord(known, str(error), None))
            continue
        try:
            intact.append((known, parse_record(path, data)))
        except RecordError as error:
            refused.append(RefusedRecord(known, str(error), hashlib.sha256(data).hexdigest()))
    return ReadRecords(list(rows_of_records(intact)) if intact else [], len(intact), refused)


def _read_ahead(
    data_root: Path, listed: RecordListing | Sequence[ListedRecord]
) -> Iterator[tuple[Sequence[ListedRecord], Callable[[], ReadRecords]]]:
    """Yield pieces of *listed*, each with a function that returns its batch; processes read ahead if there are many."""
    left = iter(listed)
    pieces = iter(lambda: tuple(islice(left, _BATCH_SIZE)), ())
    if len(listed) < _MIN_FOR_PROCESSES:
        yield from ((piece, partial(read_batch, data_root, piece)) for piece in pieces)
        return
    waiting: deque[tuple[Sequence[ListedRecord], Callable[[], ReadRecords]]] = deque()
    with Workers(min(_MAX_PROCESSES, len(os.sched_getaffinity(0)))) as workers:
        for piece in pieces:
            waiting.append((piece, workers.submit(read_batch, data_root, piece).result))
            if len(waiting) > 2 * workers.num_processes:
                yield waiting.popleft()
        while waiting:
            yield waiting.popleft()


def _insert_piece(
    connection: duckdb.DuckDBPyConnection,
    data_root: Path,
    piece: Sequence[ListedRecord],
    read: Callable[[], ReadRecords],
) -> int:
    """Insert the records of *piece* in one transaction, or in halves if that fails; return the number inserted."""
    try:
        batch = read()
        with _transaction(connection):
            for table, rows in batch.tables:
                _insert(connection, table, rows)
            _set_aside(connection, batch.refused)
    except _ROW_ERRORS as error:
        if len(piece) == 1:
            reason = f"does not fit the database ({_first_line(error)}); expected the columns in docs/reference"
            listed = piece[0]._replace(stamp=piece[0].stamp.trusted)
            _set_aside(connection, [RefusedRecord(listed, reason, file_sha256(data_root / listed.path))])
            return 0
        halves = piece[: len(piece) // 2], piece[len(piece) // 2 :]
        return sum(_insert_piece(connection, data_root, half, partial(read_batch, data_root, half)) for half in halves)
    return batch.num_intact


@contextmanager
def _transaction(connection: duckdb.DuckDBPyConnection) -> Iterator[None]:
    connection.execute("BEGIN")
    try:
        yield
    except BaseException:
        with suppress(duckdb.Error):  # the original error is more informative
            connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")


def _insert(connection: duckdb.DuckDBPyConnection, table: str, rows: pa.Table) -> None:
    connection.register("incoming", rows)
    connection.execute(f"INSERT INTO {table} BY NAME SELECT * FROM incoming")  # noqa: S608 - the names are ours
    connection.unregister("incoming")


def _set_aside(connection: duckdb.DuckDBPyConnection, refused: Sequence[RefusedRecord]) -> None:
    if refused:
        _insert(connection, "set_aside", set_aside_rows(refused))


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0] if str(error) else repr(error)
