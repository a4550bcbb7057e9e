"""Queries to the database, with streamed results so that any length fits in memory."""

import sys
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from itertools import islice
from queue import SimpleQueue
from threading import Thread
from typing import TYPE_CHECKING, Any, Self, TypeVar

import duckdb

from tta_pipeline.errors import QuestionError
from tta_pipeline.report.tables import Table
from tta_pipeline.results.database.database import STATEMENT_ERRORS

if TYPE_CHECKING:
    import pyarrow as pa

Result = TypeVar("Result")
_ROWS_AT_ONCE = 10_000
_ROWS_OF_A_BATCH = 122_880  # each batch is a row group of a Parquet file; this is DuckDB's size of row groups
_QUERY_TYPES = frozenset(
    {
        duckdb.StatementType.SELECT,
        duckdb.StatementType.EXPLAIN,
        duckdb.StatementType.PRAGMA,
        duckdb.StatementType.CALL,
        duckdb.StatementType.MULTI,  # PIVOT
    }
)


class Answer:
    """The result of one query; use it as a context manager, and read it once.

    DuckDB ignores Ctrl-C while it computes, so it runs in its own thread; the main thread receives Ctrl-C and
    interrupts the computation. The threads share nothing but two `SimpleQueue`s: a `Future` has a lock written in
    Python, and Ctrl-C at the moment when the main thread has just locked it leaves it locked forever.
    """

    def __init__(
        self,
        connection: duckdb.DuckDBPyConnection,
        sql: str,
        parameters: Sequence[object] = (),
        *,
        kept_as: str | None = None,
    ) -> None:
        """Prepare the query *sql* with *parameters* bound; it runs when the result is first read.

        A temporary table *kept_as* keeps the rows, in their order, for a second query.

        Raises:
            QuestionError: *sql* is not exactly one query.
        """
        _require_one_query(connection, sql)
        self._connection, self._sql, self._parameters = connection, sql, list(parameters)
        self._kept_as = kept_as
        self._works: SimpleQueue[Callable[[], Any] | None] = SimpleQueue()
        self._results: SimpleQueue[tuple[Any, BaseException | None]] = SimpleQueue()
        self._thread = Thread(target=_work, args=(self._works, self._results), name="question", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._works.put(None)
        while self._thread.is_alive():  # the work may not have begun at the first interrupt
            self._connection.interrupt()
            self._thread.join(0.05)

    @cached_property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns; raises QuestionError if the query fails."""
        self._run_in_thread(self._execute)
        return tuple(column[0] for column in self._connection.description or ())

    def rows(self) -> Iterator[tuple[Any, ...]]:
        """Yield every row.

        Raises:
            QuestionError: a row cannot be computed, or contains a value that Python cannot represent.
        """
        assert self.columns  # runs the query
        while rows := self._run_in_thread(lambda: self._connection.fetchmany(_ROWS_AT_ONCE)):
            yield from rows

    def table(self, limit: int | None) -> tuple[Table, bool]:
        """Return the first *limit* rows, or all, and whether there are more."""
        columns, rows = self.columns, self.rows()
        table = Table(columns=columns, rows=tuple(islice(rows, limit)))
        return table, limit is not None and next(rows, None) is not None

    def batches(self) -> "tuple[pa.Schema, Iterator[pa.RecordBatch]]":
        """Return the Arrow schema, and an iterator over all rows in batches.

        Raises:
            QuestionError: see `rows`.
        """
        reader: Any = self._run_in_thread(
            lambda: self._connection.sql(self._sql, params=self._parameters).to_arrow_reader(_ROWS_OF_A_BATCH)
        )
        return reader.schema, iter(lambda: self._run_in_thread(lambda: next(reader, None)), None)

    def _execute(self) -> None:
        if self._kept_as is None:
            self._connection.execute(self._sql, self._parameters)
            return
        self._connection.execute(f"CREATE OR REPLACE TEMP TABLE {self._kept_as} AS {self._sql}", self._parameters)
        self._connection.execute(f"FROM {self._kept_as}")

    def _run_in_thread(self, work: Callable[[], Result]) -> Result:
        """Return the result of *work* in DuckDB, which `__exit__` interrupts."""
        self._works.put(work)
        result: Result
        result, error = self._results.get()
        try:
            if error is not None:
                raise error
        except STATEMENT_ERRORS + _arrow_errors() as raised:
            raise QuestionError(_one_line(raised)) from raised
        except (OverflowError, ValueError) as raised:
            raise QuestionError(
                f"A value of the result cannot be represented in Python ({raised}); expected another type: cast the "
                "column, such as x::VARCHAR"
            ) from raised
        finally:
            del error  # otherwise it and this frame refer to each other and keep the connection alive
        return result


def _arrow_errors() -> tuple[type[Exception], ...]:
    """Return pyarrow's exceptions; none before `batches` makes DuckDB import it, since tables do not need it."""
    arrow = sys.modules.get("pyarrow")
    return (arrow.ArrowException,) if arrow else ()


def _work(works: SimpleQueue[Callable[[], Any] | None], results: SimpleQueue[tuple[Any, BaseException | None]]) -> None:
    """Do each of *works* until None comes, and put its result or error into *results*."""
    while work := works.get():
        try:
            results.put((work(), None))
        except BaseException as error:  # noqa: BLE001 - raised again in the thread that waits for the result
            results.put((None, error))
        del work  # otherwise the connection lives until the next one


def _require_one_query(connection: duckdb.DuckDBPyConnection, sql: str) -> None:
    try:
        sql.encode()
        statements = connection.extract_statements(sql)
    except UnicodeEncodeError:
        raise QuestionError(
            "The query is not valid UTF-8; expected Unicode text: retype its special characters"
        ) from None
    except STATEMENT_ERRORS as error:
        raise QuestionError(_one_line(error)) from error
    if len(statements) != 1:
        found = f"The SQL has {len(statements)} statements" if statements else "The SQL has no query"
        raise QuestionError(f"{found}; expected one query, such as FROM leaderboard: run one query at a time")
    (statement,) = statements
    if statement.type not in _QUERY_TYPES:
        raise QuestionError(
            f"{statement.type.name} is not allowed, since the database is read-only here; expected a query, such as "
            "SELECT"
        )


def _one_line(error: Exception) -> str:
    """Return DuckDB's message on one line, without the excerpt of the query."""
    return " ".join(str(error).partition("\nLINE ")[0].split())
