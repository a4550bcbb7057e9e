"""The verb `shards publish`."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from tta_pipeline.cli.common import plain_errors, say, with_reporter
from tta_pipeline.cli.verbs import Verb
from tta_pipeline.util.json_values import JsonObject

if TYPE_CHECKING:
    from datetime import datetime

    from tta_pipeline.util.console import ConsoleReporter


@click.command(
    cls=Verb,
    examples=[
        "tta-pipeline shards publish digits_c published",
        "tta-pipeline shards publish imagenet_c published --cell 'fog|5' --cell 'fog|3'",
        "tta-pipeline shards publish --shards shards/fog published --shift-set imagenet_c --title 'Fog'",
    ],
)
@click.argument("names", metavar="[BENCHMARK] OUT", nargs=-1, required=True)
@click.option(
    "--shards",
    metavar="DIR",
    type=click.Path(path_type=Path, exists=True),
    help="Publish the shard sets here, not a benchmark's.",
)
@click.option("--cell", "keys", multiple=True, metavar="CELL", help="Only this cell, such as fog|5; can be repeated.")
@click.option("--shift-set", metavar="SET", help="With --shards: the set whose licence and citation apply.")
@click.option("--licence", metavar="TEXT", help="What the owner of the images allows, such as 'CC BY 4.0'.")
@click.option("--title", metavar="TEXT", help="Title of the data set; else that of the benchmark.")
@click.option("--published-on", type=click.DateTime(["%Y-%m-%d"]), metavar="DATE",
              help="Date of publication, such as 2026-11-24; else the day when the newest cell was made.")  # fmt: skip
@plain_errors
@with_reporter
def publish_shards(
    names: tuple[str, ...],
    *,
    shards: Path | None,
    keys: tuple[str, ...],
    shift_set: str | None,
    licence: str | None,
    title: str | None,
    published_on: "datetime | None",
    reporter: "ConsoleReporter",
) -> None:
    r"""Write shards as a data set for others, ready for upload.

    The new folder OUT has all cells, the clean images if there are shards of them, a card for the Hugging Face Hub with
    a configuration for each cell, Croissant metadata, a preview, the classes, and the sha256 of every file. Each shard
    is hashed first. Shards with a label beside each image are hard-linked where the file system allows it, and take no
    space; other shards are rewritten with labels. The same shards and date give the same bytes. Nothing is uploaded:
    the command for the upload is printed.
    """
    from tta_pipeline import __version__
    from tta_pipeline.benchmarks.load_files import load_all_benchmarks
    from tta_pipeline.data.shifts.shift_set_files import find_shift_set
    from tta_pipeline.extras.publishing.cells_to_publish import find_benchmark_cells, find_cells_below
    from tta_pipeline.extras.publishing.data_set import DataSet, are_generated, require_one_data_set
    from tta_pipeline.extras.publishing.data_set_folder import require_absent, write_data_set
    from tta_pipeline.extras.publishing.terms import terms_of
    from tta_pipeline.util.locations import Locations
    from tta_pipeline.util.partitions import CLEAN, parse_key

    if len(names) != (2 if shards is None else 1):
        raise click.UsageError(f"found {' '.join(names)!r}; expected BENCHMARK OUT, or OUT with --shards")
    target = Path(names[-1])
    require_absent(target)
    locations = Locations.from_environment()
    if shards is not None:
        found = find_shift_set(shift_set, locations.benchmark_files) if shift_set else None
        cells = find_cells_below(shards, keys, reporter)
    else:
        described = load_all_benchmarks(locations).benchmark(names[0])
        found, title = described.shift_set, title or described.title
        has_clean = locations.shards(described.name, CLEAN).exists()
        wanted = ((CLEAN,) if has_clean else ()) + described.cells
        known = (CLEAN, *described.cells, *described.held_out_cells)
        cells = find_benchmark_cells(
            locations, described.name, [parse_key(key, known) for key in keys] or wanted, reporter
        )
    require_one_data_set(cells, shards or names[0])
    data_set = DataSet(
        name=target.name,
        title=title or target.name,
        terms=terms_of(found, is_generated=are_generated(cells), stated=licence),
        cells=cells,
        code_version=__version__,
    )
    data_set = write_data_set(data_set, target, published_on.date() if published_on else data_set.made_on, reporter)
    size = f"{len(cells)} cells, {data_set.num_samples:,} samples, {data_set.shard_bytes / 1e6:,.1f} MB"
    facts: JsonObject = {"folder": str(target), "num_cells": len(cells), "num_samples": data_set.num_samples,
             "shard_bytes": data_set.shard_bytes, "licence": data_set.terms.licence}  # fmt: skip
    reporter.report_finished(f"{target}: {size}", facts, number=1, total=1, what="data sets")
    if data_set.terms.warning:
        say(f"Before you publish it: {data_set.terms.warning}")
    say(f"To upload it: hf upload-large-folder --repo-type dataset <user>/{target.name} {target}")
