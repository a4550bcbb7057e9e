"""The verb `adopt`."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from tta_pipeline.cli.common import plain_errors, read_class_map, require_no_pipes, shard_set_facts, with_reporter

if TYPE_CHECKING:
    from tta_pipeline.console import ConsoleReporter


@click.command()
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option("--class-map", type=click.Path(path_type=Path), help="JSON or meta.mat; else the sorted classes found.")
@plain_errors
@with_reporter
def adopt(folder: Path, *, reporter: "ConsoleReporter", class_map: Path | None) -> None:
    r"""Build manifests for shards made by others; every byte is read, none is rewritten.

    Every folder with *.tar files at or under DIR is one set; the last two levels are corruption and severity. A set
    that has a manifest is verified and stays as it is.

    \b
    Examples:
      tta-pipeline adopt shards
      tta-pipeline adopt shards/fog/5 --class-map wnids.json
    """
    from tta_pipeline.cli.folders import adopt_everything

    require_no_pipes(folder)
    for number, total, published in adopt_everything(folder, read_class_map(class_map), reporter):
        manifest = published.shard_set.manifest
        counts = f"{manifest.num_samples:,} samples of {len(manifest.classes)} classes in {len(manifest.shards)} shards"
        line = f"{published.shard_set.folder}: {counts}: {'adopted' if published.was_built else 'unchanged'}"
        facts = {**shard_set_facts(published.shard_set), "was_built": published.was_built}
        reporter.done(line, facts, number=number, total=total)
