"""The leaderboard of the first page, with intervals and a mark on each row that may be the best."""

from collections.abc import Mapping, Sequence

from markupsafe import Markup

from tta_pipeline.report.pages.collected_results import CollectedResults
from tta_pipeline.report.pages.comparison import Pairs, not_significantly_worse
from tta_pipeline.report.significance.estimates import Estimate
from tta_pipeline.report.tables import Table, as_html, drop_obvious_columns, join_intervals

_TOLERANCE = 1e-9
"""Largest difference between two sums of the same errors in different orders."""


def leaderboard_html(
    table: Table, gathered: CollectedResults, compared: Pairs, means: Mapping[str, Estimate]
) -> Markup:
    """Return the leaderboard with the interval of each mean error, and with the rows marked that may be the best."""
    wider, leading = add_intervals(table, gathered, compared, means)
    shown = drop_obvious_columns(join_intervals(_drop_column(wider, "generated")))
    return as_html(shown, name="board", caption="Leaderboard", leading=leading)


def add_intervals(
    table: Table, gathered: CollectedResults, compared: Pairs, means: Mapping[str, Estimate]
) -> tuple[Table, frozenset[int]]:
    """Return the leaderboard of a benchmark with the interval of each mean error, and the rows that may be the best.

    Args:
        table: The leaderboard.
        gathered: Results of the benchmark's cells.
        compared: Comparisons of all pairs of its experiments.
        means: The mean errors with their intervals.
    """
    columns = {name: table.columns.index(name) for name in ("experiment", "subset", "num_cells", "mean_error")}
    names, subsets, num_cells, errors = (table.column(name) for name in columns)

    def interval_of(number: int) -> tuple[float | None, float | None]:
        found = means.get(names[number])
        # The row's mean may cover cells without stored predictions: then the interval is not the row's.
        if found is None or gathered.subsets[names[number]] != subsets[number]:
            return None, None
        return (found.low, found.high) if abs(found.mean - errors[number]) < _TOLERANCE else (None, None)

    after = columns["mean_error"] + 1
    intervals = [interval_of(number) for number in range(len(table.rows))]
    wider = Table(
        columns=(*table.columns[:after], "error_low", "error_high", *table.columns[after:]),
        rows=tuple((*row[:after], *each, *row[after:]) for row, each in zip(table.rows, intervals, strict=True)),
    )
    groups: dict[tuple[str, int], list[int]] = {}
    for number, error in enumerate(errors):
        if error is not None:
            groups.setdefault((subsets[number], num_cells[number]), []).append(number)
    leading = frozenset(
        number
        for group in groups.values()
        if len(group) > 1
        for number in _find_leading(group, names, errors, compared)
    )
    return wider, leading


def _find_leading(group: Sequence[int], names: Sequence[str], errors: Sequence[float], compared: Pairs) -> set[int]:
    """Return the best of *group* and the rows not significantly worse; empty if nothing can be compared."""
    best = min(group, key=lambda number: errors[number])
    equal = not_significantly_worse(names[best], [names[number] for number in group if number != best], compared)
    if equal is None:
        return set()
    return {best, *(number for number in group if names[number] in equal)}


def _drop_column(table: Table, column: str) -> Table:
    """Return *table* without *column*, which the page states in its text."""
    at = table.columns.index(column)
    return Table(
        columns=table.columns[:at] + table.columns[at + 1 :], rows=tuple(row[:at] + row[at + 1 :] for row in table.rows)
    )
