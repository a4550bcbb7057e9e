"""Rows of the database as readable tables."""

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Self

import duckdb
from markupsafe import Markup, escape

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, kw_only=True, slots=True)
class Table:
    """Named columns and the rows under them."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]
    best: frozenset[tuple[int, str]] | None = None
    """Row number and column of each value in bold, if they were judged before columns were left out."""

    def column(self, name: str) -> list[Any]:
        """Return the values of one column."""
        position = self.columns.index(name)
        return [row[position] for row in self.rows]

    def select(self, positions: Sequence[int]) -> Self:
        """Return the columns at *positions*, in this order."""
        return replace(
            self,
            columns=tuple(self.columns[at] for at in positions),
            rows=tuple(tuple(row[at] for at in positions) for row in self.rows),
        )

    def without(self, *names: str) -> Self:
        """Return the table without the columns *names*."""
        return self.select([at for at, name in enumerate(self.columns) if name not in names])

    def with_values(self, name: str, values: Iterable[Any]) -> Self:
        """Return the table with *values* in the column *name*."""
        at = self.columns.index(name)
        rows = ((*row[:at], value, *row[at + 1 :]) for row, value in zip(self.rows, values, strict=True))
        return replace(self, rows=tuple(rows))


class TableAnswer:
    """Rows in memory with the methods of an `Answer` of the database, which need not be opened for them."""

    def __init__(self, table: Table) -> None:
        self._table = table

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns."""
        return self._table.columns

    def rows(self) -> Iterator[tuple[Any, ...]]:
        """Yield every row."""
        yield from self._table.rows

    def table(self, limit: int | None) -> tuple[Table, bool]:
        """Return the first *limit* rows, or all, and whether there are more."""
        shown = replace(self._table, rows=self._table.rows[:limit])
        return shown, len(shown.rows) < len(self._table.rows)

    def batches(self) -> "tuple[pa.Schema, Iterator[pa.RecordBatch]]":
        """Return the Arrow schema, and an iterator over all rows in batches."""
        import pyarrow as pa  # a tenth of a second, for Parquet alone

        found = pa.table({name: self._table.column(name) for name in self.columns})
        return found.schema, iter(found.to_batches())


class WithSpread(float):
    """A value with its standard deviation over seeds and the ends of its interval, which readers see behind it."""

    sd: float | None
    ends: tuple[float, float] | None

    def __new__(cls, value: float, *, sd: float | None = None, ends: tuple[float, float] | None = None) -> Self:
        """Return *value* with *sd* and *ends*; None: not known."""
        found = super().__new__(cls, value)
        found.sd, found.ends = sd, ends
        return found


class UnderLoad(float):
    """A time or speed that was never measured on a quiet machine: readers see a mark, and it is never the best."""


_TIMES = ("ms_per_image", "images_per_s")
UNDER_LOAD_NOTE = (
    "*: timed only while others used the machine, so the time shows little about the method; to evaluate it "
    "again on a quiet machine: `tta-pipeline run BENCHMARK --force`."
)


def mark_rows(table: Table) -> Table:
    """Return *table* with marked times in rows that are `under_load`, and cells as `2 of 6` where some are missing.

    The columns behind these marks are left out.
    """
    if "num_cells_asked" in table.columns:
        counts = zip(table.column("num_cells"), table.column("num_cells_asked"), strict=True)
        cells = [found if found == asked else f"{found} of {asked}" for found, asked in counts]
        table = table.with_values("num_cells", cells)
    loaded = table.column("under_load") if "under_load" in table.columns else ()
    for name in _TIMES if any(loaded) else ():
        if name in table.columns:
            times = zip(table.column(name), loaded, strict=True)
            marked = [UnderLoad(time) if is_loaded and time is not None else time for time, is_loaded in times]
            table = table.with_values(name, marked)
    return table.without("num_cells_asked", "under_load")


def has_marks(table: Table) -> bool:
    """Return whether *table* has a time that `mark_rows` has marked."""
    return any(isinstance(value, UnderLoad) for row in table.rows for value in row)


SD_NOTE = "±: standard deviation over seeds."


def has_sd(table: Table) -> bool:
    """Return whether *table* has a value with its standard deviation."""
    return any(isinstance(value, WithSpread) and value.sd is not None for row in table.rows for value in row)


def query(connection: duckdb.DuckDBPyConnection, sql: str, parameters: Sequence[object] = ()) -> Table:
    """Return the result of *sql* with *parameters* bound."""
    result = connection.execute(sql, list(parameters))
    columns = tuple(column[0] for column in result.description)
    return Table(columns=columns, rows=tuple(result.fetchall()))


def name_class(classes: Sequence[str], number: int) -> str:
    """Return the name of a predicted class; a model may have more classes than the shards."""
    return classes[number] if 0 <= number < len(classes) else f"class {number}"


_CHANGE = ("change", "change_low", "change_high", " gain")
_P_VALUES = ("p_value", "p_holm")
_PERCENT = (
    "error", "error_worst_10pct_seeds", "error_at_5", "error_a", "error_b", "error_low", "error_high", "ece", "share",
    "gap", "min_detectable_diff", "shown_from",
)  # fmt: skip


def format_value(column: str, value: object) -> str:
    """Return *value* in readable form: errors and shares in percent, large numbers with separators."""
    if value is None:
        return "-"
    if isinstance(value, list):
        return ", ".join(format_value(column, each) for each in value)
    if isinstance(value, WithSpread):
        return _format_spread(column, value)
    if isinstance(value, float):
        return f"{_format_float(column, value)}{'*' if isinstance(value, UnderLoad) else ''}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def _format_spread(column: str, value: WithSpread) -> str:
    """Return *value* like `55.6 ± 0.4% [54.9, 56.2]`."""
    text = _format_float(column, value)
    unit = "%" if text.endswith("%") else ""
    sd = f" ± {_format_float(column, value.sd).removesuffix(unit)}" if value.sd is not None else ""
    ends = [_format_float(column, each).removesuffix(unit) for each in value.ends or ()]
    interval = f" [{', '.join(ends)}]" if ends else ""
    return f"{text.removesuffix(unit)}{sd}{unit}{interval}"


def _format_float(column: str, value: float) -> str:
    if column.endswith(_PERCENT):
        return f"{value:.1%}"
    if column.endswith(_CHANGE):
        return f"{value:+.1%}"
    if column in _P_VALUES:
        return f"{value:.2g}" if value >= 1e-4 else f"{value:.0e}"
    if column.endswith("_s") and not column.endswith("_per_s"):
        return f"{value:,.2f}"
    return f"{value:,.0f}" if abs(value) >= 100 or value.is_integer() else f"{value:#.3g}"


_LOWER_IS_BETTER = (
    "mean_error", "error_worst_10pct_seeds", "mean_error_at_5", "error_at_5", "clean_error", "mce", "relative_mce",
    "mean_top5_error", "mean_nll", "mean_brier", "mean_ece", "ms_per_image",
)  # fmt: skip
_BEST: Mapping[str, Callable[[Sequence[float]], float]] = {**dict.fromkeys(_LOWER_IS_BETTER, min), "images_per_s": max}
# Only rows that agree in these columns are compared.
_COMPARABLE = (
    "benchmark", "dataset", "shift_group", "datasets", "protocol", "subset", "corruption", "severity", "num_cells",
    "stream", "published_as",
)  # fmt: skip


def best_cells(table: Table) -> frozenset[tuple[int, str]]:
    """Return row number and column of each value that is the best among comparable rows."""
    if table.best is not None:
        return table.best
    kept = [name for name in _COMPARABLE if name in table.columns]
    groups: dict[tuple[Any, ...], list[int]] = {}
    for number, key in enumerate(zip(*(table.column(name) for name in kept), strict=True) if kept else ()):
        groups.setdefault(key, []).append(number)
    return frozenset(
        (number, name)
        for numbers in (groups.values() if kept else [range(len(table.rows))])
        for name in table.columns
        if name in _BEST
        for number in _best_of(name, table.column(name), numbers)
    )


def _best_of(column: str, values: Sequence[Any], numbers: Sequence[int]) -> Sequence[int]:
    """Return which of the rows *numbers* have the best of *values*; values that readers cannot tell apart are equal."""
    known = [number for number in numbers if not (values[number] is None or isinstance(values[number], UnderLoad))]
    if len(known) < 2:
        return ()
    wanted = _text_of(column, _BEST[column]([values[number] for number in known]))
    return [number for number in known if _text_of(column, values[number]) == wanted]


def _text_of(column: str, value: float) -> str:
    """Return *value* as readers see it, without its interval."""
    return _format_float(column, float(value))


_OBVIOUS: Mapping[str, object] = {
    "dataset": "imagenet_c",
    "subset": "all",
    "num_runs": 1,
    "num_diverged": 0,
    "diverged": False,
    "generated": False,
    "untrained": False,
    "without_file": False,
}


def drop_obvious_columns(table: Table) -> Table:
    """Return *table* without columns that are empty or hold only the obvious value."""
    telling = [
        number
        for number, name in enumerate(table.columns)
        if not table.rows or any(row[number] is not None and row[number] != _OBVIOUS.get(name) for row in table.rows)
    ]
    return table.select(telling)


def fold_constant_columns(table: Table) -> tuple[Table, str]:
    """Return *table* without columns that say the same in all of several rows, and what they say in a sentence.

    Errors and other results stay, since equal ones are no setting.
    """
    folded = [
        number
        for number, name in enumerate(table.columns)
        if len(table.rows) > 1 and len({str(row[number]) for row in table.rows}) == 1
        and not (name in _BEST or name.endswith(_PERCENT))
    ]  # fmt: skip
    said = [f"{column_title(table.columns[at])} {format_value(table.columns[at], table.rows[0][at])}" for at in folded]
    kept = [number for number in range(len(table.columns)) if number not in folded]
    return table.select(kept), f"The same in all rows: {', '.join(said)}." if said else ""


_INTERVALS = (
    ("mean_error", "error_low", "error_high"),
    ("error_change", "error_change_low", "error_change_high"),
)  # fmt: skip
_NAMES_OF_ALL = ("benchmark", "dataset", "protocol")
"""Columns that are left out if all rows have the same value."""


def shorten(table: Table, columns: Sequence[str]) -> Table:
    """Return the *columns* that *table* has, in this order, with standard deviations and intervals after values."""
    table = _join_sd(join_intervals(table))
    shown = [
        name
        for name in columns
        if name in table.columns and not (name in _NAMES_OF_ALL and len(set(table.column(name))) == 1)
    ]
    return table.select([table.columns.index(name) for name in shown])


def join_intervals(table: Table) -> Table:
    """Return *table* with each value and the ends of its interval in one column."""
    for name, low, high in _INTERVALS:
        if {name, low, high} <= set(table.columns):
            ends = zip(table.column(name), table.column(low), table.column(high), strict=True)
            joined = [value if start is None else WithSpread(value, ends=(start, end)) for value, start, end in ends]
            table = table.with_values(name, joined).without(low, high)
    return table


def _join_sd(table: Table) -> Table:
    """Return *table* with each mean error and its standard deviation over seeds in one column."""
    if not {"mean_error", "sd_error"} <= set(table.columns):
        return table
    joined = [
        value if sd is None else WithSpread(value, sd=sd, ends=getattr(value, "ends", None))
        for value, sd in zip(table.column("mean_error"), table.column("sd_error"), strict=True)
    ]
    return table.with_values("mean_error", joined).without("sd_error")


def as_html(
    table: Table,
    *,
    name: str,
    caption: str,
    leading: Collection[int] = (),
    is_whole: bool = True,
    grouped_by: str | None = None,
) -> Markup:
    """Return *table* as an HTML table whose cells have rounded text, in a region that scrolls.

    Columns that say the same in all rows become a sentence below it.

    Args:
        table: The table; if its first column is `experiment`, its cells are row headers.
        name: Value of `id`.
        caption: Description of the table, for screen readers.
        leading: Numbers of the rows to highlight.
        is_whole: Whether each cell has its unrounded number in `data-v`, which doubles the size of the page.
        grouped_by: A column; neighbouring rows with the same value become a group under a heading, instead of it.
    """
    table, same = fold_constant_columns(table)
    best = best_cells(table)
    groups = table.column(grouped_by) if grouped_by in table.columns else [None] * len(table.rows)
    table = table.without(*([grouped_by] if grouped_by else []))
    words = {column for column in table.columns if any(isinstance(value, str) for value in table.column(column))}
    rows = [
        Markup("<tr{}>{}</tr>\n").format(
            Markup(' class="leading"') if number in leading else Markup(""),
            Markup("").join(
                _html_cell(column, value, is_whole=is_whole, is_head=column == table.columns[0] == "experiment",
                           classes=[*(["best"] if (number, column) in best else []),
                                    *(["text"] if column in words else [])])
                for column, value in zip(table.columns, row, strict=True)
            ),
        )
        for number, row in enumerate(table.rows)
    ]  # fmt: skip
    bodies = Markup("").join(
        Markup("<tbody>{}{}</tbody>").format(
            _group_heading(grouped_by, group, len(table.columns)), Markup("").join(row for _, row in of_group)
        )
        for group, of_group in groupby(zip(groups, rows, strict=True), key=itemgetter(0))
    )
    head = Markup("").join(
        Markup('<th scope="col"{}>{}</th>').format(_class_of(["text"] if column in words else []), column_title(column))
        for column in table.columns
    )
    return Markup(
        '<div class="scroll" role="region" aria-label="{}, a table" tabindex="0">'
        '<table class="sortable" id="{}"><caption>{}</caption><thead><tr>{}</tr></thead>{}</table>'
        "</div>{}"
    ).format(caption, name, caption, head, bodies, Markup('<p class="quiet">{}</p>').format(same) if same else "")


def _group_heading(column: str | None, value: object, num_columns: int) -> Markup:
    if column is None or value is None:
        return Markup("")
    return Markup('<tr class="group"><th scope="rowgroup" colspan="{}">{} {}</th></tr>\n').format(
        num_columns, column_title(column), format_value(column, value)
    )


def as_html_text(text: str) -> Markup:
    """Return *text* as HTML, with commands that are between backquotes as code."""
    return Markup(re.sub("`([^`]+)`", r"<code>\1</code>", str(escape(text))))  # noqa: S704 - escaped here


def as_html_list(table: Table) -> Markup:
    """Return the only row of *table* as an HTML list of names and values."""
    (row,) = table.rows
    items = (
        Markup("<dt>{}</dt><dd>{}</dd>\n").format(column_title(column), format_value(column, value))
        for column, value in zip(table.columns, row, strict=True)
    )
    return Markup("<dl>{}</dl>").format(Markup("").join(items))


HEADINGS = {
    "benchmark": "Benchmark",
    "generated": "Generated",
    "untrained": "Untrained",
    "experiment": "Experiment",
    "corruption": "Corruption",
    "severity": "Severity",
    "class": "Class",
    "mean_error": "Error",
    "sd_error": "sd over seeds",
    "error_worst_10pct_seeds": "Worst 10 % of seeds",
    "mean_error_at_5": "Error (severity 5)",
    "error_at_5": "Error (severity 5)",
    "clean_error": "Clean error",
    "error_change": "Change",
    "better": "Better",
    "p_holm": "p (Holm)",
    "mean_ece": "ECE",
    "mce": "mCE",
    "nll": "NLL",
    "ece": "ECE",
    "top5_error": "Top-5 error",
    "images_per_s": "images/s",
    "num_cells": "Cells",
    "num_images": "Images",
    "num_runs": "Seeds",
}
"""Headings of a table in a paper; other columns have their names."""


def column_title(column: str) -> str:
    """Return the name of a column in words, as in a sentence; a heading that has words already is left as it is."""
    if " " in column:
        return column
    title = HEADINGS.get(column) or re.sub(r"_s$", " (s)", column.removeprefix("num_")).replace("_", " ")
    return title[0].lower() + title[1:] if title[1:2].islower() else title


def _html_cell(column: str, value: object, *, is_whole: bool, is_head: bool, classes: Sequence[str]) -> Markup:
    text = format_value(column, value)
    if is_head:
        return Markup('<th scope="row"{}>{}</th>').format(_class_of(classes), text)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    whole = Markup(' data-v="{}"').format(repr(value)) if is_whole and is_number else Markup("")
    return Markup("<td{}{}>{}</td>").format(_class_of(classes), whole, text)


def _class_of(classes: Sequence[str]) -> Markup:
    return Markup(' class="{}"').format(" ".join(classes)) if classes else Markup("")


def as_markdown(table: Table) -> str:
    """Return *table* as GitHub-flavoured Markdown, with the best of each column in bold."""
    best = best_cells(table)

    def cell(number: int, name: str, value: object) -> str:
        text = str(escape(format_value(name, value))).replace("|", "\\|").replace("\n", " ")
        return f"**{text}**" if (number, name) in best else text

    lines = [table.columns, tuple("---" for _ in table.columns)]
    lines += [
        tuple(cell(number, name, value) for name, value in zip(table.columns, row, strict=True))
        for number, row in enumerate(table.rows)
    ]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
