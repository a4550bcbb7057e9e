"""Questions to the database and their answers, which are read as they come, so that any length fits in memory."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from functools import cached_property
from itertools import islice
from typing import Any, Self, TypeVar

import duckdb
import pyarrow as pa

from tta_pipeline.errors import QuestionError
from tta_pipeline.metrics.database import OF_STATEMENTS
from tta_pipeline.reports.tables import Table

Result = TypeVar("Result")
_ROWS_AT_ONCE = 10_000
_ROWS_OF_A_BATCH = 122_880  # each is a row group of a Parquet file, and this the size of DuckDB's own
_QUESTIONS = frozenset(
    {
        duckdb.StatementType.SELECT,
        duckdb.StatementType.EXPLAIN,
        duckdb.StatementType.PRAGMA,
        duckdb.StatementType.CALL,
        duckdb.StatementType.MULTI,  # PIVOT
    }
)


class Answer:
    """What the database answers to one question; to be used as a context, and read once.

    DuckDB computes in a thread of its own, since it does not hear Ctrl-C while it does: here the main thread hears it
    and ends the computation.
    """

    def __init__(self, connection: duckdb.DuckDBPyConnection, sql: str, parameters: Sequence[object] = ()) -> None:
        """Ask *sql* with *parameters* bound, as soon as the answer is looked at.

        Raises:
            QuestionError: it is no question, or several.
        """
        _require_one_question(connection, sql)
        self._connection, self._sql, self._parameters = connection, sql, list(parameters)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="question")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.interrupt()
        self._thread.shutdown()

    @cached_property
    def columns(self) -> tuple[str, ...]:
        """Their names; QuestionError if the database cannot answer."""
        self._asked(lambda: self._connection.execute(self._sql, self._parameters))
        return tuple(column[0] for column in self._connection.description or ())

    def rows(self) -> Iterator[tuple[Any, ...]]:
        """Yield every row.

        Raises:
            QuestionError: a row cannot be computed, or holds what Python has no value for.
        """
        assert self.columns  # it has been asked
        while rows := self._asked(lambda: self._connection.fetchmany(_ROWS_AT_ONCE)):
            yield from rows

    def table(self, limit: int | None) -> tuple[Table, bool]:
        """Return the first *limit* rows, or all, and whether there are more."""
        columns, rows = self.columns, self.rows()
        table = Table(columns=columns, rows=tuple(islice(rows, limit)))
        return table, limit is not None and next(rows, None) is not None

    def batches(self) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
        """Return the columns in Arrow's types, and every row in batches of them.

        Raises:
            QuestionError: as `rows` says.
        """
        reader: Any = self._asked(
            lambda: self._connection.sql(self._sql, params=self._parameters).to_arrow_reader(_ROWS_OF_A_BATCH)
        )
        return reader.schema, iter(lambda: self._asked(lambda: next(reader, None)), None)

    def _asked(self, work: Callable[[], Result]) -> Result:
        """Return the result of *work*, which DuckDB does, or end it when this thread is interrupted."""
        future = self._thread.submit(work)
        try:
            return future.result()
        except KeyboardInterrupt:
            future.cancel()
            while not future.done():  # it may not have begun when it is told
                self._connection.interrupt()
                wait([future], timeout=0.05)
            raise
        except (*OF_STATEMENTS, pa.ArrowException) as error:
            raise QuestionError(_one_line(error)) from error
        except (OverflowError, ValueError) as error:
            raise QuestionError(
                f"a value cannot be told ({error}); cast it to another type, as in x::VARCHAR"
            ) from error
        finally:
            del future  # its error knows this frame, and each would keep the other, and the connection


def _require_one_question(connection: duckdb.DuckDBPyConnection, sql: str) -> None:
    try:
        sql.encode()
        statements = connection.extract_statements(sql)
    except UnicodeEncodeError:
        raise QuestionError("it is no text in UTF-8; type the question anew") from None
    except OF_STATEMENTS as error:
        raise QuestionError(_one_line(error)) from error
    if len(statements) != 1:
        found = f"found {len(statements)} statements" if statements else "found no question"
        raise QuestionError(f"{found}; expected one, such as FROM leaderboard")
    (statement,) = statements
    if statement.type not in _QUESTIONS:
        raise QuestionError(f"found a statement of kind {statement.type.name}; expected a question, such as SELECT")


def _one_line(error: Exception) -> str:
    """Return what DuckDB says without the picture of the place, which takes several lines."""
    return " ".join(str(error).partition("\nLINE ")[0].split())
