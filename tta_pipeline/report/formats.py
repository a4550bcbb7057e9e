"""Formats of tables: for readers, with the best values in bold; for programs, with every value in full."""

import csv
import io
import json
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, TextIO

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from tta_pipeline.errors import QuestionError
from tta_pipeline.report.tables import HEADINGS, Table, as_markdown, best_cells, column_title, format_value
from tta_pipeline.util.identifiers import find_duplicates

_GAP = 2
"""Spaces between two columns."""
_WIDE = 10_000  # wide enough that no line is wrapped
_NAMES = ("experiment", "corruption", "better", "experiment_a", "experiment_b")
"""Columns of names with underscores instead of spaces."""


def as_terminal(
    table: Table, *, width: int | None = None, is_styled: bool = False, title: Callable[[str], str] = column_title
) -> str:
    """Return *table* in aligned columns.

    Headings that do not fit side by side into *width* characters are split into words; None: all fit. With *is_styled*
    the best of each column is bold. *title* gives the heading of a column.
    """
    fits = width is None or sum(_column_widths(table, " ", title)) <= width
    return _align_columns(table, " " if fits else "\n", is_styled=is_styled, title=title)


def drop_overflow(table: Table, width: int) -> tuple[Table, tuple[str, ...]]:
    """Return *table* without the last columns, which `as_terminal` cannot fit into *width*, and their names.

    The first column and the mean error always stay.
    """
    widths = dict(zip(table.columns, _column_widths(table, "\n", column_title), strict=True))
    for name in reversed(table.columns[1:]):
        if sum(widths.values()) > width and name != "mean_error":
            del widths[name]
    left_out = tuple(name for name in table.columns if name not in widths)
    return table.without(*left_out), left_out


def _column_widths(table: Table, between_words: str, title: Callable[[str], str]) -> Sequence[int]:
    """Return the width of each column in characters; of all but the first, with the gap before it."""
    widths: list[int] = []
    for name in table.columns:
        heading = title(name).replace(" ", between_words).split("\n")
        texts = chain(heading, (format_value(name, value) for value in table.column(name)))
        widths.append(max(map(cell_len, texts)) + (_GAP if widths else 0))
    return widths


def _align_columns(table: Table, between_words: str, *, is_styled: bool, title: Callable[[str], str]) -> str:
    best = best_cells(table) if is_styled else ()
    shown = RichTable(box=None, pad_edge=False)
    for name in table.columns:
        heading = title(name).replace(" ", between_words)
        shown.add_column(heading, justify="right" if _is_numeric(table, name) else "left", vertical="bottom")
    for number, row in enumerate(table.rows):
        shown.add_row(
            *(  # Text: brackets in a name are not markup
                Text(format_value(name, value), style="bold" if (number, name) in best else "")
                for name, value in zip(table.columns, row, strict=True)
            )
        )
    buffer = io.StringIO()
    Console(file=buffer, width=_WIDE, force_terminal=is_styled, no_color=True).print(shown)
    return "\n".join(line.rstrip() for line in buffer.getvalue().splitlines())


def as_latex(table: Table, *, leading: Collection[int] = (), notes: Sequence[str] = ()) -> str:
    r"""Return *table* as a LaTeX tabular with the rules of booktabs, with the best of each column in bold.

    Percent signs are in the headings, and names have spaces instead of underscores.

    Args:
        table: The table.
        leading: Numbers of the rows whose mean error gets a dagger.
        notes: Sentences for the caption, such as the meaning of the dagger; comments above the table.
    """
    best = best_cells(table)
    texts = {name: [format_value(name, value) for value in table.column(name)] for name in table.columns}
    numeric = [name for name in table.columns if _is_numeric(table, name)]
    in_percent = {name for name in numeric if any(each.partition(" [")[0].endswith("%") for each in texts[name])}

    def cell(number: int, name: str) -> str:
        text = texts[name][number].replace("_", " ") if name in _NAMES else texts[name][number]
        value, gap, interval = text.partition(" [") if name in numeric else (text, "", "")
        shown = _escape_latex(value.removesuffix("%") if name in in_percent else value)
        shown = rf"\textbf{{{shown}}}" if (number, name) in best else shown
        shown = rf"{shown}$^\dagger$" if number in leading and name == "mean_error" else shown
        return rf"{shown} {{\footnotesize [{interval}}}" if gap else shown

    def heading(name: str) -> str:
        return _escape_latex(f"{HEADINGS.get(name) or name.replace('_', ' ')}{' (%)' if name in in_percent else ''}")

    alignment = "".join("r" if name in numeric else "l" for name in table.columns)
    return "\n".join(
        [
            r"% needs \usepackage{booktabs}",
            *(f"% {note}" for note in notes),
            rf"\begin{{tabular}}{{{alignment}}}",
            r"\toprule",
            rf"{' & '.join(map(heading, table.columns))} \\",
            r"\midrule",
            *(rf"{' & '.join(cell(number, name) for name in table.columns)} \\" for number in range(len(table.rows))),
            r"\bottomrule",
            r"\end{tabular}",
        ]
    )


def as_csv(table: Table) -> str:
    """Return *table* as `write_csv` writes it, without a trailing newline."""
    buffer = io.StringIO()
    write_csv(table.columns, table.rows, buffer)
    return buffer.getvalue().rstrip("\n")


def write_csv(columns: Sequence[str], rows: Iterable[Sequence[Any]], file: TextIO) -> None:
    """Write CSV to *file*: numbers in full, missing values empty."""
    writer = csv.writer(file, lineterminator="\n")
    # A carriage return ends a row for CSV readers, and Python's writer does not quote it by default.
    quoting = csv.writer(file, lineterminator="\n", quoting=csv.QUOTE_NONNUMERIC)
    for row in chain([columns], rows):
        has_returns = any(isinstance(value, str) and "\r" in value for value in row)
        (quoting if has_returns else writer).writerow(row)


def write_json(columns: Sequence[str], rows: Iterable[Sequence[Any]], file: TextIO) -> None:
    """Write a JSON array of objects to *file*; values that JSON cannot represent become null or text.

    Raises:
        QuestionError: two columns have the same name.
    """
    require_unique_columns(columns)
    before = "["
    for row in rows:
        text = json.dumps({name: _to_json_types(value) for name, value in zip(columns, row, strict=True)}, indent=1)
        file.write(f"{before}\n {text.replace(chr(10), chr(10) + ' ')}")
        before = ","
    file.write("[]\n" if before == "[" else "\n]\n")


def require_unique_columns(columns: Sequence[str]) -> None:
    """Check that no two columns have the same name, since some formats would keep only one.

    Raises:
        QuestionError: two columns have the same name.
    """
    if twice := sorted(find_duplicates(columns)):
        raise QuestionError(
            f"Two columns have the name {twice[0]}; expected different names: rename one of them with AS"
        )


READER_FORMATS: Mapping[str, Callable[[Table], str]] = {
    "table": as_terminal,
    "latex": as_latex,
    "markdown": as_markdown,
}
"""Formats for readers, which leave out obvious columns and keep a whole table in memory."""
Write = Callable[[Sequence[str], Iterable[Sequence[Any]], TextIO], None]
PROGRAM_FORMATS: Mapping[str, Write] = {"csv": write_csv, "json": write_json}
"""Text formats that are written row by row; Parquet, in `arrow_query`, has its own types and batches."""


def _is_numeric(table: Table, name: str) -> bool:
    return any(isinstance(value, int | float) and not isinstance(value, bool) for value in table.column(name))


_LATEX = str.maketrans(
    {
        **{character: f"\\{character}" for character in "&%$#_{}"},
        "\\": r"\textbackslash{}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "±": r"$\pm$",
    }
)


def _escape_latex(text: str) -> str:
    return text.translate(_LATEX)


def _to_json_types(value: Any) -> Any:
    """Return *value* in JSON types: NaN and infinity become None, keys become text, other types become text."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): _to_json_types(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_to_json_types(each) for each in value]
    return value if value is None or isinstance(value, bool | int | str) else str(value)
