"""Tables as files and text: for people with the best in bold, for programs with every value as it is."""

import csv
import io
import json
import math
from collections.abc import Callable, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from tta_pipeline.reports.tables import Table, as_markdown, best_cells, formatted

_WIDE = 10_000  # no line of a file is broken


def as_terminal(table: Table, *, width: int | None = None) -> str:
    """Return *table* in aligned columns, for a terminal of *width* characters with the best of each column in bold.

    Headings that do not fit beside each other are broken into words. Without a width it is plain text.
    """
    lines = _aligned(table, " ", is_styled=width is not None)
    if width is not None and _aligned(table, " ", is_styled=False).find("\n") > width:
        lines = _aligned(table, "\n", is_styled=True)
    return lines


def _aligned(table: Table, between_words: str, *, is_styled: bool) -> str:
    best = best_cells(table)
    shown = RichTable(box=None, pad_edge=False)
    for name in table.columns:
        heading = name.replace("_", between_words)
        shown.add_column(heading, justify="right" if _is_numeric(table, name) else "left", vertical="bottom")
    for number, row in enumerate(table.rows):
        shown.add_row(
            *(  # Text: a name with brackets is no markup
                Text(formatted(name, value), style="bold" if (number, name) in best else "")
                for name, value in zip(table.columns, row, strict=True)
            )
        )
    buffer = io.StringIO()
    Console(file=buffer, width=_WIDE, force_terminal=is_styled, no_color=True).print(shown)
    return "\n".join(line.rstrip() for line in buffer.getvalue().splitlines())


def as_latex(table: Table) -> str:
    r"""Return *table* as a LaTeX tabular with the rules of booktabs, the best of each column in bold."""
    best = best_cells(table)

    def cell(number: int, name: str, value: object) -> str:
        text = _latex(formatted(name, value))
        return rf"\textbf{{{text}}}" if (number, name) in best else text

    alignment = "".join("r" if _is_numeric(table, name) else "l" for name in table.columns)
    rows = [
        [cell(number, name, value) for name, value in zip(table.columns, row, strict=True)]
        for number, row in enumerate(table.rows)
    ]
    head = [_latex(name.replace("_", " ")) for name in table.columns]
    return "\n".join(
        [
            r"% needs \usepackage{booktabs}",
            rf"\begin{{tabular}}{{{alignment}}}",
            r"\toprule",
            rf"{' & '.join(head)} \\",
            r"\midrule",
            *(rf"{' & '.join(row)} \\" for row in rows),
            r"\bottomrule",
            r"\end{tabular}",
        ]
    )


def as_csv(table: Table) -> str:
    """Return *table* as CSV, numbers in full, nothing where there is no value."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(table.columns)
    writer.writerows(table.rows)
    return buffer.getvalue().rstrip("\n")


def as_json(table: Table) -> str:
    """Return *table* as a JSON array of objects; what JSON has no word for is null, or text."""
    rows = [{name: _finite(value) for name, value in zip(table.columns, row, strict=True)} for row in table.rows]
    return json.dumps(rows, indent=1, default=str, allow_nan=False)


def as_parquet(table: Table) -> bytes:
    """Return *table* as a Parquet file."""
    buffer = io.BytesIO()
    columns = {name: pa.array(table.column(name)) for name in table.columns}
    pq.write_table(pa.table(columns), buffer)
    return buffer.getvalue()


FORMATS: Mapping[str, Callable[[Table], str | bytes]] = {
    "table": as_terminal,
    "csv": as_csv,
    "json": as_json,
    "parquet": as_parquet,
    "latex": as_latex,
    "markdown": as_markdown,
}
FOR_PEOPLE = ("table", "latex", "markdown")
"""Formats that leave out what goes without saying."""


def _is_numeric(table: Table, name: str) -> bool:
    return any(isinstance(value, int | float) and not isinstance(value, bool) for value in table.column(name))


_LATEX = str.maketrans(
    {
        **{character: f"\\{character}" for character in "&%$#_{}"},
        "\\": r"\textbackslash{}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
    }
)


def _latex(text: str) -> str:
    return text.translate(_LATEX)


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
