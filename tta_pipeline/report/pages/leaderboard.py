"""The leaderboard of the first page, with intervals and a mark on each row that may be the best."""

from collections.abc import Sequence

from markupsafe import Markup

from tta_pipeline.report.intervals import Intervals, Pair, add_intervals
from tta_pipeline.report.pages.comparison import not_significantly_worse
from tta_pipeline.report.tables import (
    UNDER_LOAD_NOTE,
    Table,
    as_html,
    as_html_text,
    drop_obvious_columns,
    has_marks,
    join_intervals,
    mark_rows,
)


def leaderboard_html(table: Table, intervals: Intervals) -> Markup:
    """Return the leaderboard with the interval of each mean error, and with the rows marked that may be the best."""
    wider = add_intervals(table, [intervals] * len(table.rows))
    shown = drop_obvious_columns(join_intervals(_drop_column(mark_rows(wider), "generated")))
    leading = find_leading(table, [intervals] * len(table.rows))
    note = Markup('<p class="quiet">{}</p>').format(as_html_text(UNDER_LOAD_NOTE)) if has_marks(shown) else ""
    return as_html(shown, name="board", caption="Leaderboard", leading=leading, grouped_by="protocol") + note


def find_leading(table: Table, found: Sequence[Intervals]) -> frozenset[int]:
    """Return the numbers of the rows that may be the best of those with the same protocol and cells.

    Args:
        table: The leaderboard, of one benchmark or of several.
        found: For each row, the comparisons within its benchmark.
    """
    alike = [name for name in ("benchmark", "dataset", "protocol", "subset", "num_cells") if name in table.columns]
    groups: dict[tuple[object, ...], list[int]] = {}
    for number, key in enumerate(zip(*(table.column(name) for name in alike), strict=True)):
        if table.column("mean_error")[number] is not None:
            groups.setdefault(key, []).append(number)
    return frozenset(
        number
        for group in groups.values()
        if len(group) > 1
        for number in _leading_of(group, table, dict(found[group[0]].p_values or {}))
    )


def _leading_of(group: Sequence[int], table: Table, p_values: dict[Pair, float]) -> set[int]:
    """Return the best of *group* and the rows not significantly worse; empty if nothing can be compared."""
    names, errors = table.column("experiment"), table.column("mean_error")
    best = min(group, key=lambda number: errors[number])
    equal = not_significantly_worse(names[best], [names[number] for number in group if number != best], p_values)
    if equal is None:
        return set()
    return {best, *(number for number in group if names[number] in equal)}


def _drop_column(table: Table, column: str) -> Table:
    """Return *table* without *column*, which the page states in its text."""
    return table.select([at for at, name in enumerate(table.columns) if name != column])
