"""The verb `shards bench`."""

import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, Literal

import click

from tta_pipeline.cli.common import ignore_line, plain_errors, print_table, require_urls, say
from tta_pipeline.cli.verbs import Verb
from tta_pipeline.util.processes import MAX_PROCESSES

_LOADER_COLUMNS = (
    "loader", "output", "num_threads", "images_per_s", "images_per_s_min", "images_per_s_max", "time_to_first_batch_s",
    "cpu_s_per_image", "mb_per_s", "peak_memory_mib", "base_memory_mib",
)  # fmt: skip


@click.command(
    cls=Verb,
    examples=[
        "tta-pipeline shards bench data/imagenet_c/shards/fog/5",
        "tta-pipeline shards bench shards --loader indexed --loader webdataset --threads 1 --threads 2 --threads 4",
        "tta-pipeline shards bench shards --batch-size 256 --repeats 5 --json",
        "tta-pipeline shards bench https://example.org/imagenet_c/fog/5 --loader indexed",
        "tta-pipeline shards bench --generate 6000 --image-size 224 --storage tensor",
    ],
)
@click.argument("location", metavar="[DIR|URL]", required=False)
@click.option("--loader", "loaders", multiple=True, metavar="NAME",
              help="Loader to measure; can be repeated. Default: every installed one of indexed, webdataset, tar, "
              "imagefolder, dali, spdl, litdata, streaming.")  # fmt: skip
@click.option("--batch-size", type=click.IntRange(1, 65_536), default=64, show_default=True)
@click.option("--threads", "num_threads", multiple=True, type=click.IntRange(0, MAX_PROCESSES),
              show_default="one for each core",
              help="Threads or worker processes; can be repeated: the fastest counts. 0: no read-ahead.",
              default=[len(os.sched_getaffinity(0))])  # fmt: skip
@click.option("--processes", "num_processes", type=click.IntRange(1, MAX_PROCESSES), default=1, show_default=True,
              help="Processes that each read one part; the longest time and the sum of samples count.")  # fmt: skip
@click.option("--repeats", type=click.IntRange(1, 1_000), default=3, show_default=True)
@click.option("--normalization", type=click.Choice(["own", "host", "device"]), default="own", show_default=True,
              help="Where images are normalised: as in each system's examples, on the host or the device.")  # fmt: skip
@click.option("--device", default="cpu", show_default=True, help="cpu, or the kind of the accelerator, such as cuda.")
@click.option("--stage", "is_staged", is_flag=True,
              help="Copy the shards to $TMPDIR first, timed separately; always done with a URL.")  # fmt: skip
@click.option(
    "--generate", type=click.IntRange(1, 10_000_000), metavar="N", help="Measure on N generated images, without DIR."
)
@click.option("--image-size", type=click.IntRange(8, 4_096), default=64, show_default=True, help="Of generated images.")
@click.option("--storage", type=click.Choice(["raw", "tensor"]), default="raw", show_default=True,
              help="Of generated shards: JPEG files, or tensors.")  # fmt: skip
@click.option("-q", "--quiet", "is_quiet", is_flag=True, help="Print the figures only.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON array.")
@plain_errors
def bench(
    *, location: str | None, loaders: tuple[str, ...], is_staged: bool, is_quiet: bool, as_json: bool, **options: Any
) -> None:
    r"""Measure how fast loaders read shards, without a model.

    Each pass of each loader runs in its own process, and the loaders take turns. The figures are medians with their
    range. If a loader itself fails, for example because it is only partly installed, its line says why it was not
    measured. If --loader names it, the exit status is then 1.
    """
    from dataclasses import asdict

    from tta_pipeline.errors import LoaderError
    from tta_pipeline.extras.loader_bench.loaders import select_loaders
    from tta_pipeline.extras.loader_bench.measure import Settings, compare

    try:
        names = select_loaders(loaders)
    except LoaderError as error:
        raise click.UsageError(str(error)) from None
    if location is not None:
        require_urls([location])
    generated = {name: options.pop(name) for name in ("generate", "image_size", "storage")}
    if (location is None) == (generated["generate"] is None):
        raise click.UsageError("expected either DIR, URL or --generate N")
    report = ignore_line if is_quiet else say
    with nullcontext(location) if location else _generated_shards(**generated, say=report) as shards:
        found = compare(str(shards), names, Settings(**options), report, is_staged=is_staged)
    rows = [{**asdict(row), "not_measured": None} for row in found.rows]
    missing = [{"loader": name, "not_measured": reason} for name, reason in found.not_measured.items()]
    if as_json:
        click.echo(json.dumps([*rows, *missing], indent=1))
    else:
        _print_loaders(rows)
        for each in missing:
            click.echo(f"{each['loader']}  not measured: {each['not_measured']}")
    sys.exit(1 if found.not_measured.keys() & set(loaders) else 0)


@contextmanager
def _generated_shards(
    *, generate: int, image_size: int, storage: Literal["raw", "tensor"], say: Callable[[str], None]
) -> Iterator[Path]:
    from tta_pipeline.benchmarks.shard_settings import ShardSettings
    from tta_pipeline.extras.loader_bench.prepared_data import generate_shards
    from tta_pipeline.util.files import scratch_folder
    from tta_pipeline.util.progress import log_reporter

    settings = ShardSettings(num_shards=min(16, generate), format=storage)
    with scratch_folder("loader-bench-images") as folder:
        yield generate_shards(
            folder, num_images=generate, image_size=image_size, settings=settings, progress=log_reporter(say)
        )


def _print_loaders(rows: Sequence[Mapping[str, Any]]) -> None:
    from tta_pipeline.report.tables import Table

    print_table(
        Table(columns=_LOADER_COLUMNS, rows=tuple(tuple(row[name] for name in _LOADER_COLUMNS) for row in rows))
    )
