"""Progress reports of a command: bars on a terminal, lines in a log, a JSON array for a program."""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bars

from tta_pipeline.util.json_values import JsonObject
from tta_pipeline.util.progress import Progress, log_reporter

_COLUMNS = (
    TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[speed]}"),
    TimeRemainingColumn(),
)  # fmt: skip


class ConsoleReporter:
    """Report images as they are processed, and each shard set when it is finished."""

    def __init__(self, bars: Bars | None, *, is_quiet: bool, as_json: bool) -> None:
        self._bars = bars
        self._is_quiet = is_quiet
        self._as_json = as_json
        self._sets: Any = None
        self.facts: list[JsonObject] = []

    def __call__(self, what: str, total: int, *, unit: str = "images") -> Progress:
        """Return a counter of images (or another *unit*) for *what*: a bar, or a line every few seconds."""
        if self._bars:
            return _Bar(self._bars, what, total, unit=unit)
        return log_reporter(self.say)(what, total, unit=unit)

    def say(self, line: str) -> None:
        """Print *line* to stderr, apart from the output, unless the reporter is quiet."""
        if not self._is_quiet:
            self._print(line, is_answer=False)

    def report_finished(
        self, line: str, facts: JsonObject, *, number: int, total: int, what: str = "shard sets"
    ) -> None:
        """Report that item *number* of *total* is finished: *line* to the user, *facts* to a program."""
        self.facts.append(facts)
        if self._bars:
            if self._sets is None:
                self._sets = self._bars.add_task(what, total=total, speed="")
            self._bars.update(self._sets, completed=number)
        if not self._is_quiet and not self._as_json:
            self._print(f"{number} of {total}: {line}" if total > 1 else line, is_answer=True)

    def _print(self, line: str, *, is_answer: bool) -> None:
        if self._bars and (sys.stdout if is_answer else sys.stderr).isatty():
            # Print above the bars: they occupy the place where the terminal would print the line.
            self._bars.console.print(line, markup=False, highlight=False, soft_wrap=True)
        else:
            click.echo(line, err=not is_answer)


@contextmanager
def console_reporter(*, is_quiet: bool, as_json: bool) -> Iterator[ConsoleReporter]:
    """Yield a command's reporter; with *as_json*, print its facts when the block ends without an exception."""
    with _bars(is_wanted=sys.stderr.isatty() and not is_quiet) as bars:
        reporter = ConsoleReporter(bars, is_quiet=is_quiet, as_json=as_json)
        yield reporter
    if as_json:
        click.echo(json.dumps(reporter.facts, indent=1))


@contextmanager
def _bars(*, is_wanted: bool) -> Iterator[Bars | None]:
    if not is_wanted:
        yield None
        return
    with Bars(*_COLUMNS, console=Console(stderr=True), transient=True) as bars:
        yield bars


class _Bar(Progress):
    """A bar instead of lines; it disappears when everything is done."""

    def __init__(self, bars: Bars, what: str, total: int, *, unit: str) -> None:
        super().__init__(self._show, what=what, total=total, unit=unit, interval_s=0.1)
        self._bars = bars
        self._task = bars.add_task(what, total=total or None, speed="")

    def advance(self, number: int, num_bytes: int = 0) -> None:
        super().advance(number, num_bytes)
        if self.num_done == self._total:
            self._bars.update(self._task, visible=False)

    def _show(self, line: str) -> None:
        speed = line.split(f"{self._unit}, ", 1)[1].rsplit(", ", 1)[0]
        self._bars.update(self._task, completed=self.num_done, speed=speed)
