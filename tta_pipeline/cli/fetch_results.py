"""The verb `results fetch`."""

from typing import TYPE_CHECKING

import click

from tta_pipeline.cli.common import plain_errors, say, with_reporter
from tta_pipeline.cli.verbs import Verb
from tta_pipeline.domain.locations import Locations, results_url
from tta_pipeline.util.json_values import JsonObject
from tta_pipeline.util.plurals import count_of

if TYPE_CHECKING:
    from tta_pipeline.util.console import ConsoleReporter


@click.command(
    cls=Verb,
    examples=[
        "tta-pipeline results fetch s3://bucket/results",
        "TTA_RESULTS_URL=s3://bucket/results tta-pipeline results fetch",
    ],
)
@click.argument("url", required=False, metavar="[URL]")
@plain_errors
@with_reporter
def fetch_results(*, url: str | None, reporter: "ConsoleReporter") -> int:
    r"""Import results that other machines sent to a URL.

    The URL is by default $TTA_RESULTS_URL. Each record is verified, and numbered after the local records of its cell,
    which stay unchanged. Stored predictions are fetched too, and the database is updated. Damaged and foreign records
    are listed and left out; the exit status is then 1.
    """
    from tta_pipeline.results.database.database import publish_metrics
    from tta_pipeline.results.record_exchange import fetch_records

    url = url or results_url()
    if not url:
        raise click.UsageError("found no URL; expected one, or TTA_RESULTS_URL, such as s3://bucket/results")
    locations = Locations.from_environment()
    fetched = fetch_records(locations.root, url, reporter)
    for note in publish_metrics(locations, progress=reporter).notes:
        reporter.say(note)
    facts: JsonObject = {
        "url": url,
        "num_fetched": fetched.num_fetched,
        "num_known": fetched.num_known,
        "set_aside": list(fetched.set_aside),
    }
    reporter.report_finished(
        f"{url}: {count_of(fetched.num_fetched, 'record')} fetched, {fetched.num_known:,} known",
        facts,
        number=1,
        total=1,
    )
    for line in fetched.set_aside:
        say(f"set aside: {line}")
    return 1 if fetched.set_aside else 0
