"""The verb `experiments`."""

import sys

import click

from tta_pipeline.cli.common import plain_errors, print_table, say
from tta_pipeline.locations import Locations


@click.command()
@click.argument("benchmark")
@click.option("--format", "form", type=click.Choice(["table", "csv", "json", "latex", "markdown"]), default="table",
              show_default=True)  # fmt: skip
@plain_errors
def experiments(*, benchmark: str, form: str) -> None:
    r"""List the experiments of a benchmark file, those that a matrix makes too, and how far each is.

    Recorded streams have a result for each of their cells; `why` says whether it is of the present data and settings.
    Faulty experiments are named after the list, and the exit status is then 1.

    \b
    Examples:
      tta-pipeline experiments digits_c
      tta-pipeline experiments digits_c --format csv
    """
    from tta_pipeline.benchmarks.loading import load_all
    from tta_pipeline.reports.experiments import experiment_table
    from tta_pipeline.reports.formats import FOR_PEOPLE, FOR_PROGRAMS
    from tta_pipeline.reports.tables import without_obvious

    locations = Locations.from_environment()
    loaded = load_all(locations)
    table = experiment_table(loaded.benchmark(benchmark), locations)
    if form == "table":
        print_table(without_obvious(table))
    elif form in FOR_PEOPLE:
        click.echo(FOR_PEOPLE[form](without_obvious(table)))
    else:
        FOR_PROGRAMS[form](table.columns, table.rows, sys.stdout)
    faults = loaded.faults_of(benchmark)
    for fault in faults:
        say(f"left out: {fault.sentence}")
    if faults:
        sys.exit(1)
