"""Options of verbs that answer from the database, and how their answers are printed or written."""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tta_pipeline.cli.common import chosen_form, print_table, say
from tta_pipeline.util.files import write_atomically, written_file

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa

    from tta_pipeline.report.answers import Answer
    from tta_pipeline.util.locations import Locations

_ROWS_FOR_PEOPLE = 1_000


@dataclass(frozen=True, kw_only=True)
class Output:
    """How an answer is printed, or written to a file, as the user asked by options."""

    form: str
    path: Path | None
    max_rows: int | None

    def write(self, answer: "Answer", *, is_own_question: bool = False) -> None:
        """Print *answer* or write it: for programs row by row, for people a limited number of rows."""
        from tta_pipeline.report.formats import PROGRAM_FORMATS, READER_FORMATS, write_parquet

        if self.form in READER_FORMATS:
            self._write_for_people(answer, is_own_question=is_own_question)
        elif self.form == "parquet":
            assert self.path is not None
            schema, batches = answer.batches()
            with written_file(self.path) as path, path.open("wb") as binary:
                write_parquet(schema, batches if self.max_rows is None else _first(batches, self.max_rows), binary)
        elif self.path:
            with written_file(self.path) as path, path.open("w", encoding="utf-8", newline="") as file:
                PROGRAM_FORMATS[self.form](answer.columns, islice(answer.rows(), self.max_rows), file)
        else:
            PROGRAM_FORMATS[self.form](answer.columns, islice(answer.rows(), self.max_rows), sys.stdout)

    def write_text(self, text: str) -> None:
        """Print *text* or write it."""
        if self.path:
            write_atomically(self.path, f"{text}\n".encode())
        else:
            click.echo(text)

    def _write_for_people(self, answer: "Answer", *, is_own_question: bool) -> None:
        from tta_pipeline.report.formats import READER_FORMATS
        from tta_pipeline.report.tables import drop_obvious_columns

        max_rows = _ROWS_FOR_PEOPLE if is_own_question and self.max_rows is None else self.max_rows
        table, has_more = answer.table(max_rows)
        if not is_own_question:
            table = drop_obvious_columns(table)
        if self.form == "table" and not self.path:
            print_table(table)
        else:
            self.write_text(READER_FORMATS[self.form](table))
        if has_more:
            say(f"These are the first {max_rows:,} rows, and there are more: --rows N for more, --format csv for all.")


def with_output(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give *command* options for its answer's format, file and number of rows, and an `output` that obeys them."""

    @wraps(command)
    def answering(*args: Any, form: str, as_json: bool, path: Path | None, max_rows: int | None, **kwargs: Any) -> Any:
        form = chosen_form(form, as_json=as_json)
        if form == "parquet" and path is None:
            raise click.UsageError("--format parquet needs --output FILE, since no terminal shows it")
        return command(*args, output=Output(form=form, path=path, max_rows=max_rows), **kwargs)

    for option in (
        click.option("--rows", "max_rows", type=click.IntRange(1), metavar="N", help="Only the first N rows. Without "
                     f"it, --sql gives {_ROWS_FOR_PEOPLE:,} to people, and all to programs."),
        click.option("--output", "path", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE",
                     help="Write there instead of printing."),
        click.option("--json", "as_json", is_flag=True, help="Print one JSON array."),
        click.option("--format", "form", type=click.Choice(["table", "csv", "parquet", "latex", "markdown"]),
                     default="table", show_default=True, help="parquet needs --output."),
    ):  # fmt: skip
        answering = option(answering)
    return answering


@contextmanager
def current_metrics(locations: "Locations") -> "Iterator[duckdb.DuckDBPyConnection]":
    """Open the database after bringing it up to date; at the end, list the records that count nowhere.

    If there are any, the exit status is 1.
    """
    from tta_pipeline.errors import QuestionError
    from tta_pipeline.results.database.database import ensure_current, open_metrics, read_set_aside
    from tta_pipeline.util.progress import log_reporter

    for note in ensure_current(locations, log_reporter(say)):
        say(note)
    try:
        with open_metrics(locations.metrics) as connection:
            yield connection
    except QuestionError as error:
        raise click.UsageError(str(error)) from None
    _exit_if_set_aside(read_set_aside(locations))


def say_if_generated(connection: "duckdb.DuckDBPyConnection", runs: Sequence[str] = ()) -> None:
    """Print a note if results of *runs*, or the latest ones, are on images made here, or of random weights."""
    from tta_pipeline.report.tables import GENERATED_NOTE, UNTRAINED_NOTE

    asked = "run_id IN (?, ?)" if runs else "is_latest"
    counts = "count(*) FILTER (generated), count(*) FILTER (weights = 'untrained')"
    sql = f"SELECT {counts} FROM evaluations WHERE {asked}"  # noqa: S608 - the words are ours
    ((num_generated, num_untrained),) = connection.execute(sql, list(runs)).fetchall()
    if num_generated:
        say(f"generated: {GENERATED_NOTE}")
    if num_untrained:
        say(f"untrained: {UNTRAINED_NOTE}")


def _exit_if_set_aside(set_aside: Sequence[str]) -> None:
    for line in set_aside:
        say(f"set aside: {line}")
    if set_aside:
        sys.exit(1)


def _first(batches: "Iterator[pa.RecordBatch]", max_rows: int) -> "Iterator[pa.RecordBatch]":
    """Yield the first *max_rows* rows of *batches*."""
    for batch in batches:
        yield batch.slice(length=max_rows)
        max_rows -= batch.num_rows
        if max_rows <= 0:
            return
