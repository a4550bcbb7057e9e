"""The verb `results rebuild`."""

from typing import TYPE_CHECKING

import click

from tta_pipeline.cli.common import plain_errors, say, with_reporter
from tta_pipeline.cli.verbs import Verb
from tta_pipeline.domain.locations import Locations
from tta_pipeline.util.json_values import JsonObject
from tta_pipeline.util.plurals import count_of

if TYPE_CHECKING:
    from tta_pipeline.util.console import ConsoleReporter


@click.command(cls=Verb, examples=["tta-pipeline results rebuild"])
@plain_errors
@with_reporter
def rebuild(*, reporter: "ConsoleReporter") -> int:
    """Rebuild the database from the result files.

    Reads every result file. Damaged and foreign files are listed and left out; the exit status is then 1.
    """
    from tta_pipeline.results.database.publication import publish_metrics

    locations = Locations.from_environment()
    publication = publish_metrics(locations, rebuild=True, progress=reporter)
    for note in publication.notes:
        reporter.say(note)
    facts: JsonObject = {
        "database": str(locations.metrics),
        "num_results": publication.num_added,
        "set_aside": list(publication.set_aside),
    }
    reporter.report_finished(
        f"{locations.metrics}: {count_of(publication.num_added, 'result')}", facts, number=1, total=1
    )
    for line in publication.set_aside:
        say(f"set aside: {line}")
    return 1 if publication.set_aside else 0
