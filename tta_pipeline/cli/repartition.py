"""The verb `repartition`."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from tta_pipeline.cli.common import plain_errors, require_no_pipes, shard_set_facts, with_reporter

if TYPE_CHECKING:
    from tta_pipeline.util.console import ConsoleReporter


@click.command()
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.argument("output", type=click.Path(path_type=Path))
@click.option("--instances", type=click.IntRange(1), required=True, help="Number of equal parts.")
@plain_errors
@with_reporter
def repartition(folder: Path, output: Path, *, reporter: "ConsoleReporter", instances: int) -> None:
    r"""Split a shard set equally over instances: no sample is lost or doubled, no byte changes, parts have manifests.

    \b
    Example:
      tta-pipeline repartition shards/fog/5 parts --instances 8
    """
    from tta_pipeline.shards.splitting import split_shard_set

    require_no_pipes(folder)
    for number, total, published in split_shard_set(folder, output, instances, reporter):
        line = f"{published.shard_set.folder}: {published.shard_set.manifest.num_samples:,} samples"
        reporter.report_finished(line, shard_set_facts(published.shard_set), number=number, total=total)
