"""Limits of columns of the leaderboard, and of each evaluation."""

from collections.abc import Iterator, Mapping
from typing import Any

import duckdb

from tta_pipeline.benchmarks.benchmark import Benchmark
from tta_pipeline.benchmarks.gate_settings import OF_EXPERIMENT, Gate
from tta_pipeline.report.gate.finding import Finding
from tta_pipeline.report.gate.judged_results import name_unit
from tta_pipeline.report.significance.paired_tests import Estimate, clopper_pearson
from tta_pipeline.report.tables import query

_OF_EXPERIMENT = "SELECT * FROM leaderboard WHERE benchmark = ? AND shift_set = ? AND experiment = ?"
_OF_CELLS = """
SELECT * FROM latest_evaluations
LEFT JOIN (SELECT benchmark, shift_set, experiment, subset, seed, stream, position, corruption, severity,
                  estimated_error, estimated_low, estimated_high FROM estimated_errors)
    USING (benchmark, shift_set, experiment, subset, seed, stream, position, corruption, severity)
WHERE benchmark = ? AND shift_set = ? AND experiment = ?
ORDER BY seed, stream, position, shift_position, severity
"""
_FIGURE = "the figure against the limit"
_NO_VALUE = "no value: it is not known for these results, see docs/metrics.md"


def judge_limits(
    connection: duckdb.DuckDBPyConnection,
    benchmark: Benchmark,
    experiment: str,
    gate: Gate,
    mean_error: Estimate | None,
) -> Iterator[Finding]:
    """Yield a finding for each limit of *gate*: of the experiment, or of each of its cells.

    Args:
        connection: The database, brought up to date.
        benchmark: The benchmark.
        experiment: Name of the experiment, whose cells are all finished.
        gate: The limits.
        mean_error: Interval of the mean error over images; None: it is not known.
    """
    names = [benchmark.file, benchmark.shift_set.name, experiment]
    rows = {of: _read_rows(connection, sql, names) for of, sql in (("experiment", _OF_EXPERIMENT), ("cell", _OF_CELLS))}
    for direction, limits in (("max", gate.max), ("min", gate.min)):
        for column, limit in limits.items():
            for row in rows["experiment" if column in OF_EXPERIMENT else "cell"]:
                yield _judge_row(row, column, direction, experiment=experiment, limit=limit, mean_error=mean_error)


def _read_rows(connection: duckdb.DuckDBPyConnection, sql: str, names: list[str]) -> list[dict[str, Any]]:
    found = query(connection, sql, names)
    return [dict(zip(found.columns, row, strict=True)) for row in found.rows]


def _judge_row(
    row: Mapping[str, Any],
    column: str,
    direction: str,
    *,
    experiment: str,
    limit: float,
    mean_error: Estimate | None,
) -> Finding:
    value = row[column]
    low, high = _interval(row, column, mean_error)
    return Finding(
        experiment=experiment,
        cell=None if column in OF_EXPERIMENT else _name_cell(row),
        demand=f"{column} at {'most' if direction == 'max' else 'least'} {limit:g}",
        is_kept=value is not None and (value <= limit if direction == "max" else value >= limit),
        column=column,
        value=value,
        low=low,
        high=high,
        test=_FIGURE,
        reason=_NO_VALUE if value is None else "",
    )


def _name_cell(row: Mapping[str, Any]) -> str:
    return name_unit((row["stream"], row["seed"], row["position"], f"{row['corruption']}|{row['severity']}"))


def _interval(
    row: Mapping[str, Any], column: str, mean_error: Estimate | None
) -> tuple[float, float] | tuple[None, None]:
    if column == "mean_error" and mean_error is not None:
        return mean_error.low, mean_error.high
    if column == "error":
        return clopper_pearson(row["num_samples"] - row["num_correct"], row["num_samples"])
    if column == "estimated_error":
        return row["estimated_low"], row["estimated_high"]
    return None, None
