"""The verb `shards fetch`."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from tta_pipeline.cli.common import plain_errors, require_urls, shard_set_facts, with_reporter
from tta_pipeline.cli.verbs import Verb

if TYPE_CHECKING:
    from tta_pipeline.util.console import ConsoleReporter


@click.command(
    cls=Verb,
    examples=[
        "tta-pipeline shards fetch https://example.org/imagenet_c/fog/5 shards",
        "tta-pipeline shards fetch 's3://bucket/imagenet_c/{fog,snow}/{1..5}' shards",
    ],
)
@click.argument("locations", nargs=-1, required=True, metavar="URL...")
@click.argument("output", metavar="OUT", type=click.Path(path_type=Path, file_okay=False))
@plain_errors
@with_reporter
def fetch_shards(locations: tuple[str, ...], output: Path, *, reporter: "ConsoleReporter") -> None:
    r"""Copy shards from http, s3, gs or file URLs, verified.

    They become OUT/<corruption>/<severity>. Every byte is compared with the manifest as it arrives. Existing shard sets
    are not fetched again. Braces in a URL stand for several URLs.
    """
    from tta_pipeline.data.remote_files import expand_braces
    from tta_pipeline.loading.verified_copy import fetch_shard_set

    require_urls(locations)
    found = [location for pattern in locations for location in expand_braces(pattern)]
    for number, location in enumerate(found, start=1):
        shard_set, was_copied = fetch_shard_set(location, output, reporter)
        size_mb = shard_set.manifest.shard_bytes / 1e6
        did = f"{size_mb:,.1f} MB fetched and verified" if was_copied else "there already"
        facts = {**shard_set_facts(shard_set), "was_copied": was_copied}
        reporter.report_finished(f"{shard_set.folder}: {did}", facts, number=number, total=len(found))
