"""The verb `prune`."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tta_pipeline.cli.common import LocalPath, plain_errors, print_table, say
from tta_pipeline.cli.verbs import Verb
from tta_pipeline.domain.locations import Locations
from tta_pipeline.util.plurals import count_of

if TYPE_CHECKING:
    from tta_pipeline.extras.cleanup import Unreferenced


_KINDS = ("superseded", "gone", "predictions", "states", "decoded", "unfinished")


@click.command(
    cls=Verb,
    examples=[
        "tta-pipeline prune --dry-run",
        "tta-pipeline prune gone predictions states --yes",
        "tta-pipeline prune decoded --decoded /scratch/me/decoded",
    ],
)
@click.argument("kinds", metavar="[KIND...]", nargs=-1, type=click.Choice(_KINDS))
@click.option("--dry-run", is_flag=True, help="List files without removing them.")
@click.option("--yes", is_flag=True, help="Remove without confirmation.")
@click.option("--decoded", multiple=True, type=LocalPath(exists=True, file_okay=False),
              metavar="DIR", help="Also search this folder for decoded cells (the resource's "
              "`cache_dir`).")  # fmt: skip
@click.option("--beside", multiple=True, type=LocalPath(exists=True, file_okay=False),
              metavar="DIR", help="Also search this folder for files that killed commands left next to their "
              "outputs.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="With --dry-run: print one JSON array of files.")
@plain_errors
def prune(
    *,
    kinds: tuple[str, ...],
    dry_run: bool,
    yes: bool,
    decoded: tuple[Path, ...],
    beside: tuple[Path, ...],
    as_json: bool,
) -> None:
    r"""List and remove files that are no longer used.

    Files are listed with their sizes, and removed only if you confirm.

    \b
    superseded   results of earlier code, data or settings, with their
                 predictions; without them, the history of speed and error
                 is gone
    gone         results, plans, trainings, weights and checkpoints of models or
                 datasets that the benchmark file no longer names
    predictions  predictions of samples without a result
    states       states from which no stream would resume
    decoded      decoded cells of deleted shard sets
    unfinished   files of killed processes: in the data root, on node-local
                 disk, and in the folders of --beside; files of a running
                 process stay

    Only benchmarks with a file are searched. Don't prune while a run is active.
    """
    from dataclasses import asdict

    from tta_pipeline.benchmarks.load_files import load_all_benchmarks
    from tta_pipeline.extras.cleanup import find_unreferenced, remove_unreferenced
    from tta_pipeline.results.database.publication import publish_metrics

    locations = Locations.from_environment()
    loaded = load_all_benchmarks(locations)
    for fault in loaded.faults:
        say(f"no file of {fault.benchmark} counts as gone, since its benchmark file has a fault: {fault.sentence}")
    everything = find_unreferenced(loaded, locations, decoded=decoded, beside=beside)
    found = [each for each in everything if not kinds or each.kind in kinds]
    if as_json:
        click.echo(json.dumps([asdict(each) for each in found], default=str, indent=1))
    else:
        _print_unreferenced(found, locations)
    if dry_run or not found:
        return
    if not yes and not sys.stdin.isatty():
        raise click.UsageError(
            "Without a terminal, the removal cannot be confirmed; expected --yes to remove the files, or --dry-run to "
            "list them"
        )
    if yes or click.confirm(f"Remove {count_of(len(found), 'file')}?"):
        remove_unreferenced(found, locations)
        for line in publish_metrics(locations).notes:
            say(line)


def _print_unreferenced(found: "Sequence[Unreferenced]", locations: Locations) -> None:
    from tta_pipeline.report.tables import Table

    groups: dict[tuple[str, str], list[int]] = {}
    for each in found:
        inside = each.path.is_relative_to(locations.root)
        where = "/".join(each.path.relative_to(locations.root).parts[:4][:-1]) if inside else str(each.path.parent)
        groups.setdefault((each.kind, where), []).append(each.size_bytes)
    rows = tuple((*group, len(sizes), round(sum(sizes) / 1e6, 3)) for group, sizes in sorted(groups.items()))
    if rows:
        print_table(Table(columns=("kind", "folder", "num_files", "megabytes"), rows=rows))
    megabytes = sum(each.size_bytes for each in found) / 1e6
    click.echo(f"{count_of(len(found), 'file')} to which nothing refers, {megabytes:,.1f} MB")
