"""The verb `shards transform`."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tta_pipeline.cli.common import plain_errors, shard_set_facts, with_reporter
from tta_pipeline.cli.verbs import Verb
from tta_pipeline.util.processes import MAX_PROCESSES

if TYPE_CHECKING:
    from tta_pipeline.benchmarks.shard_settings import Transform
    from tta_pipeline.util.console import ConsoleReporter


@click.command(
    cls=Verb,
    examples=[
        "tta-pipeline shards transform shards small --resize 64 --storage tensor --jobs 4",
        "tta-pipeline shards transform shards/fog/5 grey --function my_transforms:grey",
    ],
)
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.argument("output", metavar="OUT", type=click.Path(path_type=Path))
@click.option(
    "--function", metavar="MODULE:NAME", help="Function that takes an image, uint8 (H, W, 3), and returns another."
)
@click.option("--resize", type=click.IntRange(1), help="Shorter side in pixels, after the function.")
@click.option("--center-crop", type=click.IntRange(1), help="Height and width in pixels.")
@click.option("--storage", type=click.Choice(["raw", "tensor"]), default="raw", show_default=True)
@click.option("--quality", type=click.IntRange(1, 100), default=95, show_default=True,
              help="JPEG quality of images encoded again.")  # fmt: skip
@click.option("--labels", is_flag=True, help="Add a .cls and a .json member to each sample.")
@click.option("--jobs", type=click.IntRange(1, MAX_PROCESSES), default=len(os.sched_getaffinity(0)),
              show_default="one for each core", help="Processes that write and read shards.")  # fmt: skip
@plain_errors
@with_reporter
def transform(
    *, reporter: "ConsoleReporter", folder: Path, output: Path, storage: str, jobs: int, **options: Any
) -> None:
    r"""Make shards with other images, another size or format.

    Each shard set at or under DIR gives a new one. The order of the samples and the number of shards stay the same, and
    the new manifest describes the transform. A function is looked up on the Python path and in the working directory.
    """
    from tta_pipeline.shards.transformation import transform_shard_sets

    settings = _transform_settings({**options, "format": storage})
    every = transform_shard_sets(folder, output, settings, jobs=jobs, progress=reporter)
    for number, total, transformed in every:
        shard_set, was_written = transformed.published.shard_set, transformed.was_written
        size = f"{shard_set.manifest.num_samples:,} samples in {len(shard_set.manifest.shards)} shards"
        line = f"{shard_set.folder}: {size}: {'written' if was_written else 'unchanged'}"
        reporter.report_finished(
            line, {**shard_set_facts(shard_set), "was_written": was_written}, number=number, total=total
        )


def _transform_settings(options: dict[str, Any]) -> "Transform":
    from pydantic import ValidationError

    from tta_pipeline.benchmarks.shard_settings import Transform

    try:
        return Transform.model_validate(options)
    except ValidationError as error:
        problem = error.errors()[0]
        message = problem["msg"].removeprefix("Value error, ")
        raise click.UsageError(f"--{problem['loc'][0]} is {problem['input']!r}: {message}") from None
