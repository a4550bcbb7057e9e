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


def formatted(column: str, value: object) -> str:
    """Return *value* as a person reads it: errors and shares in percent, large numbers with separators."""
    if value is None:
        return "-"
    if not isinstance(value, float):
        return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
    if column.endswith(("error", "error_at_5", "ece", "share")):
        return f"{value:.1%}"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


LOWER_IS_BETTER = ("mean_error", "mean_error_at_5", "clean_error", "mean_ece")
_BEST: Mapping[str, Callable[[Sequence[float]], float]] = {**dict.fromkeys(LOWER_IS_BETTER, min), "images_per_s": max}


def best_values(table: Table) -> Mapping[str, float]:
    """Return the best value of each column in which one is better than another."""
    known = {
        name: [value for value in table.column(name) if value is not None] for name in table.columns if name in _BEST
    }
    return {name: _BEST[name](values) for name, values in known.items() if len(values) > 1}


def as_html(table: Table) -> Markup:
    """Return *table* as HTML, the best of each column in bold."""
    best = best_values(table)
    head = Markup("").join(Markup("<th>{}</th>").format(name.replace("_", " ")) for name in table.columns)
    body = Markup("").join(
        Markup("<tr>{}</tr>").format(
            Markup("").join(
                Markup("<td{}>{}</td>").format(
                    Markup(' class="best"') if name in best and value == best[name] else "", formatted(name, value)
                )
                for name, value in zip(table.columns, row, strict=True)
            )
        )
        for row in table.rows
    )
    return Markup("<table><thead><tr>{}</tr></thead><tbody>{}</tbody></table>").format(head, body)


def as_markdown(table: Table) -> str:
    """Return *table* as GitHub-flavoured Markdown, the best of each column in bold."""
    best = best_values(table)

    def cell(name: str, value: object) -> str:
        text = str(escape(formatted(name, value))).replace("|", "\\|")
        return f"**{text}**" if name in best and value == best[name] else text

    lines = [table.columns, tuple("---" for _ in table.columns)]
    lines += [tuple(cell(name, value) for name, value in zip(table.columns, row, strict=True)) for row in table.rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
