"""The verb `shards verify`."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from tta_pipeline.cli.common import LocalPath, plain_errors, with_reporter
from tta_pipeline.cli.verbs import Verb
from tta_pipeline.util.plurals import count_of

if TYPE_CHECKING:
    from tta_pipeline.util.console import ConsoleReporter


@click.command(
    cls=Verb,
    examples=[
        "tta-pipeline shards verify data/imagenet_c/shards",
        "tta-pipeline shards verify shards/fog --json",
    ],
)
@click.argument("folders", metavar="DIR...", nargs=-1, required=True, type=LocalPath(exists=True))
@plain_errors
@with_reporter
def verify(folders: tuple[Path, ...], *, reporter: "ConsoleReporter") -> int:
    """Check shards: compare every byte with the manifest.

    Missing and unlisted shards are errors, too. Missing checksums of samples are recreated.
    """
    from dataclasses import asdict

    from tta_pipeline.shards.verification import find_shard_sets, verify_shard_sets

    found = find_shard_sets(folders)
    num_problems = 0
    for number, verdict in enumerate(verify_shard_sets(found, reporter), start=1):
        num_problems += len(verdict.problems)
        for problem in verdict.problems:
            click.echo(problem, err=True)
        state = count_of(len(verdict.problems), "problem") if verdict.problems else "intact"
        counts = f"{count_of(verdict.num_samples, 'sample')}, {count_of(verdict.num_shards, 'shard')}"
        size = f"{counts}, {verdict.shard_bytes / 1e6:,.1f} MB"
        facts = {**asdict(verdict), "folder": str(verdict.folder)}
        reporter.report_finished(f"{verdict.folder}: {size}: {state}", facts, number=number, total=len(found))
    return 1 if num_problems else 0
