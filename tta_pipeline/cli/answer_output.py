"""Options of verbs that read the database, and how their answers are printed or written."""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import wraps
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from tta_pipeline.cli.common import WIDTH_WITHOUT_TERMINAL, LocalPath, say
from tta_pipeline.cli.table_output import TABLE_FORMS, Form, as_paragraphs, as_text, choose_columns, with_form
from tta_pipeline.util.files import write_atomically, written_file

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa

    from tta_pipeline.domain.locations import Locations
    from tta_pipeline.report.answers import Answer
    from tta_pipeline.report.tables import Table, TableAnswer

_ROWS_FOR_PEOPLE = 1_000
_FORM_OF_ENDING = {".csv": "csv", ".json": "json", ".md": "markdown", ".parquet": "parquet", ".tex": "latex"}


@dataclass(frozen=True, kw_only=True)
class Output:
    """How an answer is printed or written to a file, as chosen by options."""

    form: Form
    path: Path | None
    max_rows: int | None

    @property
    def is_for_people(self) -> bool:
        """Whether the answer is read by people, and not by programs."""
        from tta_pipeline.report.formats import READER_FORMATS

        return self.form.name in READER_FORMATS

    def write(
        self, answer: "Answer | TableAnswer", columns: Sequence[str] | None, *, before: Sequence[str] = ()
    ) -> None:
        """Print or write *answer*.

        Args:
            answer: The answer; programs get all of it, row by row.
            columns: The columns for people; None: all columns of the first rows, since the user wrote the query.
            before: Sentences that people read before the table.
        """
        if not self.is_for_people:
            self._write_for_programs(answer)
        elif columns is None:
            self.write_text(as_text(self.read(answer, most_rows=_ROWS_FOR_PEOPLE), self.form, is_of_a_user=True))
        else:
            self.write_table(choose_columns(self.read(answer), self.form, columns), before=before)

    def place(self, notes: Sequence[str]) -> Sequence[str]:
        """Return the *notes* to print before the table; for programs, print them on standard error and return none."""
        if self.is_for_people:
            return notes
        for note in notes:
            say(note)
        return []

    def read(self, answer: "Answer | TableAnswer", *, most_rows: int | None = None) -> "Table":
        """Return the rows that people get, with a note if there are more.

        Args:
            answer: The answer.
            most_rows: Maximum number of rows unless the user sets one; None: all.
        """
        max_rows = self.max_rows or most_rows
        table, has_more = answer.table(max_rows)
        if has_more:
            say(f"These are the first {max_rows:,} rows, and there are more: --rows N for more, --format csv for all.")
        return table

    def write_table(self, table: "Table", *, before: Sequence[str] = (), after: Sequence[str] = ()) -> None:
        """Print or write *table* for people, between the sentences *before* and *after* it."""
        parts = [*as_paragraphs(before, self.form), as_text(table, self.form)]
        self.write_text("\n".join([*parts, *(f"\n{each.rstrip()}" for each in as_paragraphs(after, self.form))]))

    def write_text(self, text: str) -> None:
        """Print *text* or write it."""
        if self.path:
            write_atomically(self.path, f"{text}\n".encode())
        else:
            click.echo(text)

    def _write_for_programs(self, answer: "Answer | TableAnswer") -> None:
        from tta_pipeline.report.formats import PROGRAM_FORMATS

        if self.form.name == "parquet":
            from tta_pipeline.report.arrow_query import write_parquet

            assert self.path is not None
            schema, batches = answer.batches()
            with written_file(self.path) as path, path.open("wb") as binary:
                write_parquet(schema, batches if self.max_rows is None else _first(batches, self.max_rows), binary)
        elif self.path:
            with written_file(self.path) as path, path.open("w", encoding="utf-8", newline="") as file:
                PROGRAM_FORMATS[self.form.name](answer.columns, islice(answer.rows(), self.max_rows), file)
        else:
            PROGRAM_FORMATS[self.form.name](answer.columns, islice(answer.rows(), self.max_rows), sys.stdout)


def with_output(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add options for the answer's form, file and number of rows to *command*, and pass their values as `output`."""

    @wraps(command)
    def obeying(*args: Any, form: Form, path: Path | None, max_rows: int | None, **kwargs: Any) -> Any:
        if form.name == "parquet" and path is None:
            raise click.UsageError(
                "--format parquet is binary and cannot be printed; expected a file: add --output FILE"
            )
        if path is not None:
            form = replace(form, name=_form_of_file(form, path), width=WIDTH_WITHOUT_TERMINAL, is_styled=False)
        return command(*args, output=Output(form=form, path=path, max_rows=max_rows), **kwargs)

    answering: Callable[..., Any] = obeying
    for option in (
        click.option("--rows", "max_rows", type=click.IntRange(1), metavar="N", help="Maximum number of rows. Default: "
                     f"{_ROWS_FOR_PEOPLE:,} rows of a query in the terminal, otherwise all."),
        click.option("--output", "path", type=LocalPath(dir_okay=False), metavar="FILE",
                     help="Write to FILE instead of printing. Without --format, the ending chooses the form: "
                     f"{', '.join(_FORM_OF_ENDING)}."),
        with_form(*TABLE_FORMS, "parquet"),
    ):  # fmt: skip
        answering = option(answering)
    return answering


def _form_of_file(form: Form, path: Path) -> str:
    """Return the name of *form*, or if the user chose none, of the form of the ending of *path*."""
    chosen = click.get_current_context().get_parameter_source("form_name") is not ParameterSource.DEFAULT
    return form.name if chosen or form.name == "json" else _FORM_OF_ENDING.get(path.suffix.lower(), form.name)


@contextmanager
def current_metrics(locations: "Locations") -> "Iterator[duckdb.DuckDBPyConnection]":
    """Open the database after bringing it up to date; at the end, list the files that were set aside.

    If there are any, the exit status is 1.
    """
    from tta_pipeline.errors import QuestionError
    from tta_pipeline.results.database.changes import open_if_current
    from tta_pipeline.results.database.database import open_metrics, read_set_aside

    try:
        with ExitStack() as stack:
            connection = stack.enter_context(open_if_current(locations))
            if connection is None:
                _bring_up_to_date(locations)
                connection = stack.enter_context(open_metrics(locations.metrics))
            set_aside = read_set_aside(connection, locations)
            yield connection
    except QuestionError as error:
        raise click.UsageError(str(error)) from None
    _exit_if_set_aside(set_aside)


def _bring_up_to_date(locations: "Locations") -> None:
    from tta_pipeline.results.database.publication import ensure_current
    from tta_pipeline.util.progress import log_reporter

    for note in ensure_current(locations, log_reporter(say)):
        say(note)


def notes_of(
    connection: "duckdb.DuckDBPyConnection", locations: "Locations", benchmark: str | None = None
) -> Sequence[str]:
    """Return the warnings about the results that count: models, uneven cells, devices and plans.

    Args:
        connection: The database.
        locations: Locations of the benchmark files.
        benchmark: Name of a benchmark; None: all.
    """
    from tta_pipeline.report import queries
    from tta_pipeline.report.plan_notes import plan_notes

    uneven = [
        f"{name}: {cell} has {num_images:,} images of {num_classes:,} classes, but other cells have "
        f"{usual_images:,} images of {usual_classes:,} classes"
        for name, cell, num_images, num_classes, usual_images, usual_classes in connection.execute(
            queries.UNEVEN_CELLS, [benchmark]
        ).fetchall()
    ]
    marks = honest_marks(connection, benchmark=benchmark, uneven=uneven)
    differing = [
        f"{name}: predictions differ between devices, by up to {100 * difference:.1f} points in the error of a cell; "
        "the first result counts"
        for name, difference in connection.execute(queries.DIFFERING_DEVICES, [benchmark]).fetchall()
    ]
    return [*marks, *differing, *plan_notes(connection, locations, benchmark)]


def honest_marks(
    connection: "duckdb.DuckDBPyConnection",
    *,
    runs: Sequence[str] = (),
    benchmark: str | None = None,
    uneven: Sequence[str] = (),
) -> Sequence[str]:
    """Return the warnings about the results of two *runs*, or about the latest results of one *benchmark* or of all.

    Args:
        connection: The database.
        runs: Ids of two runs.
        benchmark: Name of a benchmark.
        uneven: Warnings about cells whose images differ from most cells'.
    """
    from tta_pipeline.results.reader_notes import UNTRAINED, reader_notes

    asked = "run_id IN (?, ?)" if runs else "counts AND benchmark = coalesce(?, benchmark)"
    sql = f"SELECT DISTINCT experiment, generated, weights FROM evaluations WHERE {asked} ORDER BY 1"  # noqa: S608 - the words are ours
    found = connection.execute(sql, list(runs) or [benchmark]).fetchall()
    untrained = [name for name, _, weights in found if weights == UNTRAINED]
    return reader_notes(
        generated=any(generated for _, generated, _ in found), untrained=list(dict.fromkeys(untrained)), uneven=uneven
    )


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
