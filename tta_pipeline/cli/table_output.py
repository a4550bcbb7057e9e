"""Forms of a table: options of verbs that print a table, and what people and programs get."""

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import wraps
from typing import TYPE_CHECKING, Any

import click

from tta_pipeline.cli.common import say, text_width, wrap_text

if TYPE_CHECKING:
    from tta_pipeline.report.tables import Table

TABLE_FORMS = ("table", "csv", "latex", "markdown")
_LONGEST_EXPRESSION = 24
"""Characters of the heading of a column that a query does not name."""


@dataclass(frozen=True, kw_only=True)
class Form:
    """How a table is printed, as chosen by options."""

    name: str
    is_wide: bool
    """Whether people get all columns."""
    width: int
    """Columns of the terminal or of the file."""
    is_styled: bool
    """Whether bold letters can be shown."""


def table_form(*, is_wide: bool) -> Form:
    """Return the form of a table on the terminal."""
    return Form(name="table", is_wide=is_wide, width=text_width(), is_styled=sys.stdout.isatty())


def with_form(*names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator that adds `--format` with *names*, `--json` and `--wide`, and passes the chosen `form`."""

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(command)
        def formatting(*args: Any, form_name: str, as_json: bool, is_wide: bool, **kwargs: Any) -> Any:
            if as_json and form_name != "table":
                raise click.UsageError(
                    f"--format {form_name} and --json are both given; expected only one of them: leave one out"
                )
            name = "json" if as_json else form_name
            return command(*args, form=replace(table_form(is_wide=is_wide), name=name), **kwargs)

        for option in (
            click.option("--wide", "is_wide", is_flag=True, help="All columns, however wide the table is."),
            click.option("--json", "as_json", is_flag=True, help="Print one JSON array."),
            click.option("--format", "form_name", type=click.Choice(names), default="table", show_default=True,
                         help="parquet needs --output." if "parquet" in names else None),
        ):  # fmt: skip
            formatting = option(formatting)
        return formatting

    return decorate


def choose_columns(table: "Table", form: Form, columns: Sequence[str]) -> "Table":
    """Return the part of *table* that people get in *form*.

    Args:
        table: The table; columns with obvious values only are left out.
        form: The form; with `is_wide`, all other columns are shown.
        columns: Names of the columns to show, in their order. If a terminal is too narrow, the last are left out, with
            a note.
    """
    from tta_pipeline.report.formats import drop_overflow
    from tta_pipeline.report.tables import best_cells, drop_obvious_columns, mark_rows, shorten

    table = drop_obvious_columns(mark_rows(table))
    table = replace(table, best=best_cells(table))  # rows compare by columns that may be left out
    if form.is_wide:
        return table
    # A note before the table gives what holds for all rows.
    noted = {name for name in ("generated", "untrained") if name in table.columns and all(table.column(name))}
    table = shorten(table, [name for name in columns if name not in noted])
    if form.name != "table":
        return table
    fitting, left_out = drop_overflow(table, form.width)
    if left_out:
        say(f"left out, since {form.width} columns are too few: {', '.join(left_out)}; --wide shows all")
    return fitting


def as_paragraphs(sentences: Iterable[str], form: Form) -> Iterator[str]:
    """Yield the lines of *sentences* before a table in *form*: wrapped, as comments of LaTeX, or paragraphs."""
    for sentence in sentences:
        if form.name == "latex":
            yield f"% {sentence}"
        else:
            yield f"{wrap_text(sentence, form.width) if form.name == 'table' else sentence}\n"


def as_text(table: "Table", form: Form, *, is_of_a_user: bool = False) -> str:
    """Return *table* as text in a *form* for people; the columns of a user's query keep their names."""
    from tta_pipeline.report.formats import READER_FORMATS, as_terminal
    from tta_pipeline.report.tables import column_title

    if form.name == "table":
        title = _as_asked if is_of_a_user else column_title
        return as_terminal(table, width=form.width, is_styled=form.is_styled, title=title)
    return READER_FORMATS[form.name](table)


def _as_asked(column: str) -> str:
    """Return the heading of a column of a user's query; a column without a name has its expression, cut."""
    if "(" not in column:
        return column.replace("_", " ")
    expression = column.replace("count_star()", "count(*)")
    return expression if len(expression) <= _LONGEST_EXPRESSION else f"{expression[: _LONGEST_EXPRESSION - 1]}…"


def print_table_as(table: "Table", form: Form, columns: Sequence[str], *, before: Sequence[str] = ()) -> None:
    """Print *table* in *form*: for people *columns*, after the sentences *before* it; for programs all, in full."""
    from tta_pipeline.report.formats import PROGRAM_FORMATS

    if form.name in PROGRAM_FORMATS:
        PROGRAM_FORMATS[form.name](table.columns, table.rows, sys.stdout)
    else:
        shown = choose_columns(table, form, columns)
        click.echo("\n".join([*as_paragraphs(before, form), as_text(shown, form)]))
