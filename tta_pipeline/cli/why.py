"""The verb `why`."""

import json
import sys
from collections.abc import Sequence

import click

from tta_pipeline.cli.common import plain_errors, print_table, text_width
from tta_pipeline.cli.verbs import Verb
from tta_pipeline.domain.locations import Locations
from tta_pipeline.util.garbage_collection import gc_paused

Row = tuple[str, str, str, str]
"""A part of the fingerprint: its name, the stored and the current value, and what this means."""
_GAP = 2
"""Spaces between two columns."""
_LEAST = 12
"""Characters of a value that are always shown."""


@click.command(
    cls=Verb,
    examples=[
        "tta-pipeline why imagenet_c tent 'fog|5'",
        "tta-pipeline why digits_c tent_continual 5 --all",
    ],
)
@click.argument("benchmark")
@click.argument("experiment")
@click.argument("key", metavar="CELL")
@click.option(
    "--device",
    default="auto",
    show_default=True,
    help="Device that would evaluate it: auto, cpu, or a kind such as cuda.",
)
@click.option("--all", "shows_all", is_flag=True, help="Show every part, the equal ones too.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON array, with every part.")
@plain_errors
@gc_paused()
def why(*, benchmark: str, experiment: str, key: str, device: str, shows_all: bool, as_json: bool) -> None:
    """Show why a cell is finished, or will be evaluated again.

    Compares the data, weights, code and settings of its result with the current ones. CELL is a partition key:
    fog|5, clean|0, or the key of a stream, such as 5 or all. The exit status is 0 if there is nothing to evaluate,
    otherwise 1. Library versions are shown if they differ; they don't outdate a result.
    """
    from tta_pipeline.benchmarks.load_files import load_all_benchmarks
    from tta_pipeline.evaluation.explanation import COLUMNS, explain
    from tta_pipeline.report.tables import Table

    locations = Locations.from_environment()
    loaded = load_all_benchmarks(locations)
    loaded.experiment(benchmark, experiment)
    found = explain(loaded.benchmark(benchmark), experiment, key, locations, device=device)
    if as_json:
        click.echo(json.dumps([cell.facts for cell in found], indent=1))
    else:
        for cell in found:
            click.echo(f"{cell.name}: {'finished' if cell.is_finished else 'not finished'}: {cell.reason}")
            if rows := tuple(cell.rows(shows_all=shows_all)):
                print_table(Table(columns=COLUMNS, rows=fit_rows(rows, text_width()) if sys.stdout.isatty() else rows))
    sys.exit(0 if all(cell.is_finished for cell in found) else 1)


def fit_rows(rows: Sequence[Row], width: int) -> tuple[Row, ...]:
    """Return *rows* with the stored and current values shortened, so that the table fits *width* columns."""
    part, stored, present, means = (max(len(row[number]) for row in rows) for number in range(4))
    room = width - part - max(means, len("means")) - 3 * _GAP
    shorter = max(min(stored, present, max(room // 2, _LEAST)), len("present"))
    longer = max(room - shorter, _LEAST)
    stored_most, present_most = (longer, shorter) if stored > present else (shorter, longer)
    return tuple((row[0], _cut(row[1], stored_most), _cut(row[2], present_most), row[3]) for row in rows)


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"
