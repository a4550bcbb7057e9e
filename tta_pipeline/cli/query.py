"""The verb `query`."""

import click

from tta_pipeline.cli.answer_output import Output, current_metrics, with_output
from tta_pipeline.cli.common import plain_errors
from tta_pipeline.cli.verbs import Verb
from tta_pipeline.domain.locations import Locations


@click.command(
    cls=Verb,
    examples=[
        'tta-pipeline query "FROM leaderboard"',
        'tta-pipeline query "FROM corruption_errors ORDER BY mean_error DESC" --rows 20',
        'tta-pipeline query "FROM evaluations WHERE counts" --output evaluations.parquet',
    ],
)
@click.argument("sql")
@with_output
@plain_errors
def query(*, sql: str, output: Output) -> None:
    """Query the database of results in SQL.

    The database is opened for reading only. Tables and views: docs/reference/database.md. Queries to copy:
    docs/reference/queries.md.
    """
    from tta_pipeline.report.answers import Answer

    with current_metrics(Locations.from_environment()) as connection, Answer(connection, sql) as answer:
        output.write(answer, None)
