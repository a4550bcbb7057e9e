"""The verb `rebuild-metrics`."""

from typing import TYPE_CHECKING

import click

from tta_pipeline.cli.common import plain_errors, say, telling
from tta_pipeline.locations import Locations

if TYPE_CHECKING:
    from tta_pipeline.console import Told


@click.command("rebuild-metrics")
@plain_errors
@telling
def rebuild_metrics(*, told: "Told") -> int:
    """Make metrics.duckdb anew from the result records, which are the truth, each read whole.

    Records that are damaged or foreign are named and left out; the exit status is then 1.
    """
    from tta_pipeline.metrics.database import publish_metrics

    locations = Locations.from_environment()
    publication = publish_metrics(locations, rebuild=True, tell=told.progress)
    for note in publication.notes:
        told.say(note)
    facts = {
        "database": str(locations.metrics),
        "num_records": publication.num_added,
        "set_aside": list(publication.set_aside),
    }
    told.done(f"{locations.metrics}: {publication.num_added:,} records", facts, number=1, total=1)
    for line in publication.set_aside:
        say(f"set aside: {line}")
    return 1 if publication.set_aside else 0
