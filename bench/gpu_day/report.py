"""Reports for people: verdicts on the terminal, and a table between two comments of a document."""

from collections.abc import Iterable, Iterator
from itertools import groupby
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench.gpu_day.lines import Line, newest_lines, read_lines, verdict
from tta_pipeline.util.files import write_atomically

BEGIN, END = "<!-- bench.gpu_day: begin -->", "<!-- bench.gpu_day: end -->"
"""Comments that enclose the figures in a document."""
_STYLES = {"met": "green", "missed": "bold red", "failed": "bold red", "not measured": "yellow"}


class ReportError(Exception):
    """Lines or document are unusable."""


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


def write_into(document: Path, lines_path: Path) -> None:
    """Replace the text between the two comments in *document* by tables of the lines in the file *lines_path*.

    Raises:
        ReportError: the document lacks a comment, or the lines are a rehearsal's, or do not name the device.
    """
    lines = newest_lines(read_lines(lines_path))
    device = next((line.text for line in lines if line.what == "device"), None)
    if device is None or any(line.is_rehearsal for line in lines):
        raise ReportError(
            f"found {len(lines)} lines in {lines_path}, with device {device} and "
            f"{sum(line.is_rehearsal for line in lines)} of a rehearsal; expected those of a day on a GPU with its "
            "section machine: run `python -m bench.gpu_day --out` with another file where there is a GPU"
        )
    text = document.read_text(encoding="utf-8")
    if text.count(BEGIN) != 1 or text.count(END) != 1 or text.index(BEGIN) > text.index(END):
        raise ReportError(
            f"found {text.count(BEGIN)} x {BEGIN} and {text.count(END)} x {END} in {document}; expected each once, in "
            "this order: put them where the table shall be"
        )
    before, after = text.partition(BEGIN)[0], text.partition(END)[2]
    made = "\n".join([BEGIN, "", f"*{device}*, {lines[0].day[:10]}.", "", *_markdown(lines), END])
    write_atomically(document, f"{before}{made}{after}".encode())


def _markdown(lines: Iterable[Line]) -> Iterator[str]:
    """Yield a heading and a table for each section."""
    for section, found in groupby(lines, key=lambda line: line.section):
        yield from (f"## {section}", "", "| what | found | asked | verdict | |", "|---|---|---|---|---|")
        for line in found:
            row = (line.what, figure_text(line), line.asked, verdict(line), _remark(line))
            yield "| " + " | ".join(map(_cell, row)) + " |"
        yield ""


def _cell(text: str) -> str:
    """Return *text* for a cell of a table in Markdown; names of kernels have angle brackets."""
    return text.replace("|", "\\|").replace("<", "&lt;").replace("\n", " ")


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
