"""The verbs that are useful without Dagster, over the same functions that the assets call."""

import sys
from collections.abc import Callable
from functools import wraps
from typing import Any

import click

from tta_pipeline import __version__
from tta_pipeline.errors import PipelineError
from tta_pipeline.locations import Locations


def _plain_errors(command: Callable[..., Any]) -> Callable[..., Any]:
    """Turn the errors raised on purpose into one clear line each on standard error and exit status 1."""

    @wraps(command)
    def guarded(*args: Any, **kwargs: Any) -> Any:
        try:
            return command(*args, **kwargs)
        except PipelineError as error:
            click.echo(f"{type(error).__name__}: {error}", err=True)
            sys.exit(1)

    return guarded


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__)
def main() -> None:
    """Robustness benchmarks of image classifiers, from archives to a leaderboard.

    Data lies under $TTA_DATA_ROOT, by default data/ in the working directory.
    """


@main.command()
@click.option("--sql", help="Ask this question instead; the database is open for reading only.")
@_plain_errors
def metrics(sql: str | None) -> None:
    r"""Print the leaderboard.

    \b
    Examples:
      tta-pipeline metrics
      tta-pipeline metrics --sql "SELECT * FROM corruption_errors WHERE experiment = 'tent' ORDER BY mean_error DESC"
    """
    import duckdb

    from tta_pipeline.metrics.database import open_metrics
    from tta_pipeline.reports.tables import query

    with open_metrics(Locations.from_environment().metrics) as connection:
        try:
            table = query(connection, sql or _LEADERBOARD)
        except duckdb.Error as error:
            raise click.UsageError(str(error)) from None
    _print(table)


@main.command("rebuild-metrics")
@_plain_errors
def rebuild_metrics() -> None:
    """Make metrics.duckdb anew from the result records, which are the truth."""
    from tta_pipeline.metrics.database import publish_metrics

    locations = Locations.from_environment()
    publication = publish_metrics(locations, rebuild=True)
    for note in publication.notes:
        click.echo(note, err=True)
    click.echo(f"{locations.metrics}: {publication.num_added} records")


_LEADERBOARD = """
SELECT benchmark, experiment, num_cells, mean_error, mean_error_at_5, clean_error, mean_ece, images_per_s, num_diverged
FROM leaderboard ORDER BY benchmark, mean_error
"""


def _print(table: Any) -> None:
    from rich.console import Console
    from rich.table import Table as RichTable

    from tta_pipeline.reports.tables import best_values, formatted

    best = best_values(table)
    shown = RichTable(box=None, pad_edge=False)
    for name in table.columns:
        shown.add_column(
            name.replace("_", " "),
            justify="right" if any(isinstance(v, int | float) for v in table.column(name)) else "left",
        )
    for row in table.rows:
        cells = [(name, value, formatted(name, value)) for name, value in zip(table.columns, row, strict=True)]
        shown.add_row(
            *(f"[bold]{text}[/bold]" if name in best and value == best[name] else text for name, value, text in cells)
        )
    Console(width=None if sys.stdout.isatty() else 200).print(shown)
