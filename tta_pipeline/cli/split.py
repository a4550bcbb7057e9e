"""The verb `shards split`."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from tta_pipeline.cli.common import LocalPath, plain_errors, shard_set_facts, with_reporter
from tta_pipeline.cli.verbs import Verb
from tta_pipeline.util.plurals import count_of

if TYPE_CHECKING:
    from tta_pipeline.util.console import ConsoleReporter


@click.command(
    cls=Verb,
    examples=[
        "tta-pipeline shards split shards/fog/5 parts --parts 8",
    ],
)
@click.argument("folder", metavar="DIR", type=LocalPath(exists=True, file_okay=False))
@click.argument("output", metavar="OUT", type=LocalPath())
@click.option("--parts", "num_parts", type=click.IntRange(1), required=True, help="Number of equal parts.")
@plain_errors
@with_reporter
def split(folder: Path, output: Path, *, reporter: "ConsoleReporter", num_parts: int) -> None:
    """Split shards into equal parts, one for each machine.

    Every sample is in one part, and no byte changes. Each part has a manifest.
    """
    from tta_pipeline.shards.splitting import split_shard_set

    for number, total, published in split_shard_set(folder, output, num_parts, reporter):
        line = f"{published.shard_set.folder}: {count_of(published.shard_set.manifest.num_samples, 'sample')}"
        reporter.report_finished(line, shard_set_facts(published.shard_set), number=number, total=total)
