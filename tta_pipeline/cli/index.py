"""The verb `shards index`."""

import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tta_pipeline.cli.common import (
    LocalPath,
    plain_errors,
    read_class_map,
    require_urls,
    shard_set_facts,
    with_reporter,
)
from tta_pipeline.cli.verbs import Verb
from tta_pipeline.data.images.shard_layouts import LAYOUTS
from tta_pipeline.util.plurals import count_of

if TYPE_CHECKING:
    from tta_pipeline.util.console import ConsoleReporter


_LAYOUTS = textwrap.fill(
    f"Layouts: {', '.join(layout.name for layout in LAYOUTS)}.", 76, break_on_hyphens=False, subsequent_indent="  "
)


@click.command(
    cls=Verb,
    epilog=f"\b\n{_LAYOUTS}",
    examples=[
        "tta-pipeline shards index shards",
        "tta-pipeline shards index shards/fog/5 --class-map wnids.json",
        "tta-pipeline shards index imagenet --files 'imagenet-val-*.tar'",
        "tta-pipeline shards index 's3://bucket/imagenet_c/{fog,snow}/{1..5}' --into shards --class-map wnids.json",
    ],
)
@click.argument("location", metavar="DIR|URL")
@click.option("--class-map", type=LocalPath(is_read=True), help="JSON or meta.mat; default: the classes found, sorted.")
@click.option(
    "--files",
    multiple=True,
    metavar="PATTERN",
    help="Names of the shards to index, such as 'val-*.tar' or 'val-{000..127}.tar'. Repeatable.",
)
@click.option(
    "--devkit",
    metavar="META.MAT",
    type=LocalPath(exists=True, dir_okay=False),
    help="The devkit's meta.mat, if .cls members hold its ILSVRC2012_ID instead of labels.",
)
@click.option(
    "--into",
    metavar="OUT",
    type=LocalPath(file_okay=False),
    help="With a URL: write the manifests to OUT/<corruption>/<severity>. The shards stay at the URL.",
)
@click.option("--unpack", "unpacks", is_flag=True, help="Write a .tar next to each .tar.gz, and read the .tar.")
@plain_errors
@with_reporter
def index(
    location: str,
    *,
    reporter: "ConsoleReporter",
    class_map: Path | None,
    files: tuple[str, ...],
    devkit: Path | None,
    into: Path | None,
    unpacks: bool,
) -> None:
    r"""Build manifests for other people's shards. Every byte is read, and the shards stay unchanged.

    Each folder with *.tar files at or under DIR is one set. The last two levels of its path are shift and severity; if
    the last level is not a number, it is a shift without severities. A set with a manifest is only verified. Numbers in
    .cls and .json members are labels, counted from 0. Classes without a sample are listed.

    Braces in a URL expand to several sets. A manifest at the URL is used; otherwise every byte is read once.
    """
    from tta_pipeline.cli.index_everything import index_everything, index_urls
    from tta_pipeline.data.remote_files import expand_braces
    from tta_pipeline.shards.verification import describe_missing_classes, find_missing_classes

    classes = read_class_map(class_map)
    if "://" in location:
        place = _place_of_manifests(location, into, has_options_of_folders=bool(files or devkit or unpacks))
        every = index_urls(expand_braces(location), place, classes, reporter)
    else:
        _require_folder(location, into)
        every = index_everything(Path(location), classes, reporter, files=files, devkit=devkit, unpacks=unpacks)
    for number, total, published in every:
        manifest = published.shard_set.manifest
        counts = (
            f"{count_of(manifest.num_samples, 'sample')} of {count_of(len(manifest.classes), 'class')} in "
            f"{count_of(len(manifest.shards), 'shard')}"
        )
        missing = find_missing_classes(published.shard_set)
        left_out = f"; left out {found}" if (found := published.describe_left_out()) else ""
        state = "indexed" if published.was_built else "unchanged"
        line = f"{published.shard_set.folder}: {counts}{describe_missing_classes(missing)}: {state}{left_out}"
        facts = {
            **shard_set_facts(published.shard_set),
            "was_built": published.was_built,
            "left_out": dict(published.left_out),
            "missing_classes": missing,
        }
        reporter.report_finished(line, facts, number=number, total=total)


def _place_of_manifests(url: str, into: Path | None, *, has_options_of_folders: bool) -> Path:
    """Return *into*, the folder for the manifests of the shards at *url*, or refuse options that are not for URLs."""
    require_urls([url])
    if into is None:
        raise click.UsageError(
            f"{url} is a URL, but --into is missing; expected a folder for its manifest: add --into shards"
        )
    if has_options_of_folders:
        raise click.UsageError(
            "--files, --devkit or --unpack is given with a URL; expected these options only with a folder: leave them "
            "out"
        )
    return into


def _require_folder(location: str, into: Path | None) -> None:
    """Refuse a *location* that is no folder of shards, and *into*, which is for URLs."""
    if into:
        raise click.UsageError(
            "--into is given with a folder, whose manifests are written into it; expected --into only with a URL: "
            "leave it out"
        )
    if not Path(location).is_dir():
        raise click.UsageError(f"{location} is not a folder; expected a folder of shards, or a URL")
