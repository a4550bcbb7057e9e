"""The verb `shards bench`."""

import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from tta_pipeline.cli.common import ignore_line, plain_errors, print_table, require_urls, say
from tta_pipeline.cli.verbs import Verb
from tta_pipeline.util.processes import MAX_PROCESSES

if TYPE_CHECKING:
    from tta_pipeline.extras.loader_bench.forward_pass import ForwardRow
    from tta_pipeline.extras.loader_bench.measure import LoaderRow

_LOADER_COLUMNS = (
    "loader", "output", "num_threads", "images_per_s", "images_per_s_min", "images_per_s_max", "time_to_first_batch_s",
    "cpu_s_per_image", "mb_per_s", "peak_memory_mib", "base_memory_mib",
)  # fmt: skip
_FORWARD_COLUMNS = (
    "loader", "shuffle", "num_threads", "images_per_s", "images_per_s_min", "images_per_s_max", "wall_s",
    "time_to_first_batch_s", "first_batch_compute_s", "peak_memory_mib", "peak_cuda_gib",
)  # fmt: skip


def _of_torchrun(name: str, *, alone: int) -> int:
    """Return the number that `torchrun` set as variable *name* for this process; *alone* without torchrun."""
    return int(os.environ.get(name, alone))


def _one_thread_per_core() -> list[int]:
    return [max(1, len(os.sched_getaffinity(0)) // _of_torchrun("LOCAL_WORLD_SIZE", alone=1))]


@click.command(
    cls=Verb,
    examples=[
        "tta-pipeline shards bench data/imagenet_c/shards/fog/5",
        "tta-pipeline shards bench shards --loader indexed --loader webdataset --threads 1 --threads 2 --threads 4",
        "tta-pipeline shards bench shards --batch-size 256 --repeats 5 --json",
        "tta-pipeline shards bench https://example.org/imagenet_c/fog/5 --loader indexed",
        "tta-pipeline shards bench --generate 6000 --image-size 224 --storage tensor",
        "tta-pipeline shards bench shards/fog/5 --model torchvision:resnet50 --device cuda",
        (
            "torchrun --nproc-per-node 2 --no-python tta-pipeline shards bench shards/fog/5 --model timm:resnet18 "
            "--threads 2"
        ),
    ],
)
@click.argument("location", metavar="[DIR|URL]", required=False)
@click.option("--loader", "loaders", multiple=True, metavar="NAME",
              help="Reader to measure: indexed (this project's), webdataset, or imagefolder (loose files). Can be "
              "repeated; default: all three.")  # fmt: skip
@click.option("--model", help="Measure forward passes of this model: timm:<architecture>, "
              "torchvision:<architecture>, <module>:<name> of your network with random weights, or "
              "source_models/<model>.safetensors.")  # fmt: skip
@click.option("--batch-size", type=click.IntRange(1, 65_536), default=64, show_default=True)
@click.option("--threads", "num_threads", multiple=True, type=click.IntRange(0, MAX_PROCESSES),
              show_default="one for each core",
              help="Threads or worker processes. Can be repeated; the fastest counts. 0: no read-ahead.",
              default=_one_thread_per_core)  # fmt: skip
@click.option("--processes", "num_processes", type=click.IntRange(1, MAX_PROCESSES), default=1, show_default=True,
              help="Number of processes that each read one part; the longest time and the sum of samples "
              "count.")  # fmt: skip
@click.option("--repeats", type=click.IntRange(1, 1_000), default=3, show_default=True)
@click.option("--normalization", type=click.Choice(["own", "host", "device"]), default="own", show_default=True,
              help="Where images are normalised: as in each system's examples, on the host, or on the "
              "device.")  # fmt: skip
@click.option("--device", default="cpu", show_default=True, help="Device of the normalisation and the model: cpu, "
              "or the kind of accelerator, such as cuda.")  # fmt: skip
@click.option("--stage", "is_staged", is_flag=True,
              help="Copy the shards to $TMPDIR first, timed separately; always done with a URL.")  # fmt: skip
@click.option(
    "--generate", type=click.IntRange(1, 10_000_000), metavar="N", help="Measure on N generated images, without DIR."
)
@click.option(
    "--image-size", type=click.IntRange(8, 4_096), default=64, show_default=True, help="Size of generated images."
)
@click.option("--storage", type=click.Choice(["raw", "tensor"]), default="raw", show_default=True,
              help="Format of generated shards: JPEG files, or tensors.")  # fmt: skip
@click.option("-q", "--quiet", "is_quiet", is_flag=True, help="Print the figures only.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON array.")
@plain_errors
def bench(
    *,
    location: str | None,
    loaders: tuple[str, ...],
    model: str | None,
    is_staged: bool,
    is_quiet: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Measure how fast readers read shards, with or without a model.

    Without a model, each pass of each reader runs in a separate process. With --model, passes run in this process,
    or in torchrun's processes, each with its share; the row then has the samples and memory of all and the time of
    the slowest. Readers take turns. The figures are medians with their range.
    """
    from dataclasses import asdict

    from tta_pipeline.errors import LoaderError
    from tta_pipeline.extras.loader_bench.forward_pass import compare_forward
    from tta_pipeline.extras.loader_bench.loaders import select_loaders
    from tta_pipeline.extras.loader_bench.measure import Settings, compare

    try:
        chosen = select_loaders(loaders)
    except LoaderError as error:
        raise click.UsageError(str(error)) from None
    if location is not None:
        require_urls([location])
    generated = {name: options.pop(name) for name in ("generate", "image_size", "storage")}
    if (location is None) == (generated["generate"] is None):
        raise click.UsageError("DIR|URL and --generate are both given or both missing; expected exactly one of them")
    if model is None and _of_torchrun("WORLD_SIZE", alone=1) > 1:
        raise click.UsageError(
            "torchrun is used without --model; expected torchrun only for forward passes of a model: add --model, or "
            "use --processes instead of torchrun"
        )
    if model is not None and (options["num_processes"] > 1 or options["normalization"] != "own"):
        raise click.UsageError(
            "--processes or --normalization is given with --model; expected neither, since the model normalises and "
            "torchrun starts the processes: leave them out"
        )
    is_first = _of_torchrun("RANK", alone=0) == 0
    report = say if is_first and not is_quiet else ignore_line
    rows: Sequence[LoaderRow | ForwardRow]
    with nullcontext(location) if location else _generated_shards(**generated, say=report) as shards:
        if model is None:
            rows = compare(str(shards), chosen, Settings(**options), report, is_staged=is_staged)
        else:
            rows = compare_forward(str(shards), model, chosen, Settings(**options), report, is_staged=is_staged)
    if not is_first:
        return
    if as_json:
        click.echo(json.dumps([asdict(row) for row in rows], indent=1))
    else:
        _print_rows(rows, _LOADER_COLUMNS if model is None else _FORWARD_COLUMNS)


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


def _print_rows(rows: Sequence["LoaderRow | ForwardRow"], columns: tuple[str, ...]) -> None:
    from tta_pipeline.report.tables import Table

    print_table(Table(columns=columns, rows=tuple(attrgetter(*columns)(row) for row in rows)))
