"""Rows of the database as tables for people."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import duckdb
from markupsafe import Markup, escape


@dataclass(frozen=True, kw_only=True, slots=True)
class Table:
    """Named columns and the rows under them."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]

    def column(self, name: str) -> list[Any]:
        """Return the values of one column."""
        position = self.columns.index(name)
        return [row[position] for row in self.rows]


def query(connection: duckdb.DuckDBPyConnection, sql: str, parameters: Sequence[object] = ()) -> Table:
    """Return what *sql* gives with *parameters* bound."""
    result = connection.execute(sql, list(parameters))
    columns = tuple(column[0] for column in result.description)
    return Table(columns=columns, rows=tuple(result.fetchall()))


_PERCENT = ("error", "error_at_5", "error_a", "error_b", "ece", "share")


def formatted(column: str, value: object) -> str:
    """Return *value* as a person reads it: errors and shares in percent, large numbers with separators."""
    if value is None:
        return "-"
    if isinstance(value, list):
        return ", ".join(formatted(column, each) for each in value)
    if isinstance(value, float):
        return _formatted_float(column, value)
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def _formatted_float(column: str, value: float) -> str:
    if column.endswith(_PERCENT):
        return f"{value:.1%}"
    if column.endswith("change"):
        return f"{value:+.1%}"
    if column.endswith("_s") and not column.endswith("_per_s"):
        return f"{value:,.2f}"
    return f"{value:,.0f}" if abs(value) >= 100 or value.is_integer() else f"{value:#.3g}"


_LOWER_IS_BETTER = (
    "mean_error", "mean_error_at_5", "error_at_5", "clean_error", "mce", "relative_mce", "mean_top5_error", "mean_nll",
    "mean_brier", "mean_ece",
)  # fmt: skip
_BEST: Mapping[str, Callable[[Sequence[float]], float]] = {**dict.fromkeys(_LOWER_IS_BETTER, min), "images_per_s": max}
# Only rows that agree in these are told to be better one than another.
_COMPARABLE = ("benchmark", "subset", "corruption", "severity", "num_cells")


def best_cells(table: Table) -> frozenset[tuple[int, str]]:
    """Return row number and column of each value that is the best among the rows that it compares with."""
    kept = [name for name in _COMPARABLE if name in table.columns]
    groups: dict[tuple[Any, ...], list[int]] = {}
    for number, key in enumerate(zip(*(table.column(name) for name in kept), strict=True) if kept else ()):
        groups.setdefault(key, []).append(number)
    return frozenset(
        (number, name)
        for numbers in (groups.values() if kept else [range(len(table.rows))])
        for name in table.columns
        if name in _BEST
        for number in _best_of(table.column(name), numbers, _BEST[name])
    )


def _best_of(values: Sequence[Any], numbers: Sequence[int], best: Callable[[Sequence[float]], float]) -> Sequence[int]:
    known = [number for number in numbers if values[number] is not None]
    if len(known) < 2:
        return ()
    wanted = best([values[number] for number in known])
    return [number for number in known if values[number] == wanted]


_OBVIOUS: Mapping[str, object] = {"subset": "all", "num_runs": 1, "num_diverged": 0}


def without_obvious(table: Table) -> Table:
    """Return *table* without columns that tell nothing: empty ones, and those that say what goes without saying."""
    telling = [
        number
        for number, name in enumerate(table.columns)
        if not table.rows or any(row[number] is not None and row[number] != _OBVIOUS.get(name) for row in table.rows)
    ]
    return Table(
        columns=tuple(table.columns[number] for number in telling),
        rows=tuple(tuple(row[number] for number in telling) for row in table.rows),
    )


def as_html(table: Table) -> Markup:
    """Return *table* as HTML, the best of each column in bold, columns of words of the class `text`."""
    best = best_cells(table)
    words = {name for name in table.columns if any(isinstance(value, str) for value in table.column(name))}

    def marks(number: int, name: str) -> Markup:
        classes = [*(["best"] if (number, name) in best else []), *(["text"] if name in words else [])]
        return Markup(' class="{}"').format(" ".join(classes)) if classes else Markup("")

    head = Markup("").join(
        Markup("<th{}>{}</th>").format(marks(-1, name), name.replace("_", " ")) for name in table.columns
    )
    body = Markup("").join(
        Markup("<tr>{}</tr>").format(
            Markup("").join(
                Markup("<td{}>{}</td>").format(marks(number, name), formatted(name, value))
                for name, value in zip(table.columns, row, strict=True)
            )
        )
        for number, row in enumerate(table.rows)
    )
    return Markup("<table><thead><tr>{}</tr></thead><tbody>{}</tbody></table>").format(head, body)


def as_markdown(table: Table) -> str:
    """Return *table* as GitHub-flavoured Markdown, the best of each column in bold."""
    best = best_cells(table)

    def cell(number: int, name: str, value: object) -> str:
        text = str(escape(formatted(name, value))).replace("|", "\\|").replace("\n", " ")
        return f"**{text}**" if (number, name) in best else text

    lines = [table.columns, tuple("---" for _ in table.columns)]
    lines += [
        tuple(cell(number, name, value) for name, value in zip(table.columns, row, strict=True))
        for number, row in enumerate(table.rows)
    ]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
