"""Ingestion of results into the database, in columnar batches; those that do not fit are set aside one by one."""

import os
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import duckdb
import pyarrow as pa

from tta_pipeline.errors import RecordError
from tta_pipeline.results.database.counting import registered
from tta_pipeline.results.database.listing import ListedFile
from tta_pipeline.results.database.rows import Read, Tables, rows_of_results, set_aside_rows
from tta_pipeline.results.result_files import parse_result
from tta_pipeline.util.garbage_collection import gc_paused
from tta_pipeline.util.json_values import JsonObject
from tta_pipeline.util.processes import Workers
from tta_pipeline.util.progress import Reporter

_BATCH_SIZE = 500
_CHECKPOINT_EVERY = 40
"""Number of batches between checkpoints of the database; until then they are held in memory."""
_MIN_FOR_PROCESSES = 5_000
"""Number of results from which reading uses processes; fewer are read before processes have started."""
_MAX_PROCESSES = 8
"""Most processes that read; more would read faster than DuckDB inserts the rows."""
_TABLES_OF_FILES = (
    "results", "set_aside", "evaluations", "class_results", "batch_results", "training_runs", "training_epochs",
    "tunings", "tuning_criteria", "tuning_trials", "loader_benchmarks",
)  # fmt: skip
_ROW_ERRORS = (
    duckdb.ConstraintException, duckdb.DataError, duckdb.NotSupportedError, duckdb.ProgrammingError,
    pa.ArrowException, KeyError, TypeError, AttributeError, ValueError, OverflowError,
)  # fmt: skip
"""Errors of a row that does not fit; any other error concerns the file or the disk."""


class Refused(NamedTuple):
    """A file that is set aside."""

    listed: ListedFile
    reason: str


class ReadResults(NamedTuple):
    """A batch of results: the rows of intact files, and the refused ones."""

    tables: Tables
    num_intact: int
    refused: Sequence[Refused]


def add_results(
    connection: duckdb.DuckDBPyConnection, data_root: Path, listed: Sequence[ListedFile], progress: Reporter
) -> int:
    """Insert the results *listed* into the database, and set damaged or foreign ones aside; return how many it took.

    Raises:
        duckdb.Error: the file or the disk failed.
    """
    report = progress("metrics.duckdb", len(listed), unit="results")
    num_added = 0
    for number, (piece, read) in enumerate(_read_ahead(data_root, listed), start=1):
        num_added += _insert_piece(connection, data_root, piece, read)
        report.advance(len(piece))
        if number % _CHECKPOINT_EVERY == 0:
            connection.execute("CHECKPOINT")
    return num_added


def read_batch(data_root: Path, piece: Sequence[ListedFile]) -> ReadResults:
    """Read the results of *piece*; may run in another process.

    Raises:
        Exception: one of `_ROW_ERRORS`: a result does not fit its table.
    """
    with gc_paused():
        return _read_batch(data_root, piece)  # its objects are gone before the collector would search them


def _read_batch(data_root: Path, piece: Sequence[ListedFile]) -> ReadResults:
    intact: list[Read] = []
    refused: list[Refused] = []
    for listed in piece:
        path = data_root / listed.file
        try:
            intact.append((listed, parse_result(path, path.read_bytes())))
        except OSError as error:
            refused.append(Refused(listed, f"cannot be read ({error.strerror})"))
        except RecordError as error:
            refused.append(Refused(listed, str(error)))
    return ReadResults(list(rows_of_results(intact)) if intact else [], len(intact), refused)


def _read_ahead(
    data_root: Path, listed: Sequence[ListedFile]
) -> Iterator[tuple[Sequence[ListedFile], Callable[[], ReadResults]]]:
    """Yield pieces of *listed*, each with a function that returns its batch; processes read ahead if there are many."""
    left = iter(listed)
    pieces = iter(lambda: tuple(islice(left, _BATCH_SIZE)), ())
    if len(listed) < _MIN_FOR_PROCESSES:
        yield from ((piece, partial(read_batch, data_root, piece)) for piece in pieces)
        return
    waiting: deque[tuple[Sequence[ListedFile], Callable[[], ReadResults]]] = deque()
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
    piece: Sequence[ListedFile],
    read: Callable[[], ReadResults],
) -> int:
    """Insert the results of *piece* in one transaction, or in halves if that fails; return the number inserted."""
    try:
        batch = read()
        with _transaction(connection):
            for table, rows in batch.tables:
                _insert(connection, table, rows)
            _set_aside(connection, batch.refused)
    except _ROW_ERRORS as error:
        if len(piece) == 1:
            reason = f"does not fit the database ({_first_line(error)}); expected the columns in docs/reference"
            _set_aside(connection, [Refused(piece[0], reason)])
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


def _set_aside(connection: duckdb.DuckDBPyConnection, refused: Sequence[Refused]) -> None:
    if refused:
        _insert(connection, "set_aside", set_aside_rows(refused))


def remove_results(connection: duckdb.DuckDBPyConnection, files: Collection[str]) -> set[str]:
    """Remove the rows of *files*, and return the fingerprints that they had."""
    if not files:
        return set()
    with registered(connection, gone=pa.table({"file": pa.array(sorted(set(files)), pa.string())})):
        found = connection.execute("SELECT DISTINCT fingerprint FROM results SEMI JOIN gone USING (file)").fetchall()
        for table in _TABLES_OF_FILES:
            connection.execute(f"DELETE FROM {table} WHERE file IN (SELECT file FROM gone)")  # noqa: S608 - ours
    return {fingerprint for (fingerprint,) in found if fingerprint}


def set_voids(connection: duckdb.DuckDBPyConnection, listed: Sequence[ListedFile]) -> None:
    """Note why the files *listed* count nowhere, or that they may count again."""
    for each in listed:
        connection.execute("UPDATE results SET void = ? WHERE file = ?", [each.void, each.file])


def replace_shard_sets(connection: duckdb.DuckDBPyConnection, rows: Sequence[JsonObject]) -> None:
    """Let the table `shard_sets` have exactly *rows*, without those that another version of the project wrote."""
    connection.execute("DELETE FROM shard_sets")
    columns = {name for name, *_ in connection.execute("DESCRIBE shard_sets").fetchall()}
    if fitting := [row for row in rows if row.keys() == columns]:
        _insert(connection, "shard_sets", pa.Table.from_pylist(fitting))


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0] if str(error) else repr(error)
