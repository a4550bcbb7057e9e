"""Reports: verdicts on the terminal, and a file of CSV for the documents."""

from collections.abc import Iterable
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench.gpu_day.lines import Line, newest_lines, read_lines, verdict
from bench.result_pages import csv_text
from tta_pipeline.util.files import write_atomically

COLUMNS = ("day", "section", "what", "found", "low", "high", "unit", "asked", "verdict", "remark")
_STYLES = {"met": "green", "missed": "bold red", "failed": "bold red", "not measured": "yellow"}


class ReportError(Exception):
    """Lines are unusable."""


def show(lines: Iterable[Line]) -> None:
    """Print each line with its verdict, and the number of lines with each verdict."""
    table = Table(box=None)
    for name in ("section", "what", "found", "asked", "verdict", ""):
        table.add_column(name, overflow="fold")
    counts: dict[str, int] = {}
    for line in lines:
        result = verdict(line)
        counts[result] = counts.get(result, 0) + 1
        style = _STYLES.get(result, "")
        table.add_row(line.section, line.what, figure_text(line), line.asked, result, _remark(line), style=style)
    Console(width=170, highlight=False, markup=False).print(table)
    print(", ".join(f"{count} {name}" for name, count in counts.items()))  # noqa: T201 - the program's output


def write_csv(target: Path, lines_path: Path) -> None:
    """Write the newest lines of each section in the file *lines_path* as CSV to *target*.

    Raises:
        ReportError: the lines are a rehearsal's, or do not name the device.
    """
    lines = newest_lines(read_lines(lines_path))
    device = next((line.text for line in lines if line.what == "device"), None)
    if device is None or any(line.is_rehearsal for line in lines):
        raise ReportError(
            f"found {len(lines)} lines in {lines_path}, with device {device} and "
            f"{sum(line.is_rehearsal for line in lines)} of a rehearsal; expected the lines of a day on a GPU with "
            "its section machine: run `python -m bench.gpu_day --out` with another file, on a machine with a GPU"
        )
    rows = (
        (line.day[:10], line.section, line.what, *map(_digits, (line.found, line.low, line.high)), line.unit,
         line.asked, verdict(line), _remark(line))
        for line in lines
    )  # fmt: skip
    write_atomically(target, csv_text(COLUMNS, rows).encode())


def _digits(value: float | None) -> str:
    return "" if value is None else _number(value).replace(",", "")


def figure_text(line: Line) -> str:
    """Return the figure of *line* with its range and unit."""
    if line.found is None:
        return ""
    spread = f" [{_number(line.low)}-{_number(line.high)}]" if line.low is not None and line.high is not None else ""
    return f"{_number(line.found)}{spread} {line.unit}".strip()


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 or float(value).is_integer() else f"{value:.3g}"


def _remark(line: Line) -> str:
    return line.why_not or line.text
