"""The verb `models check`."""

import sys

import click

from tta_pipeline.cli.common import ignore_line, plain_errors, say, with_device
from tta_pipeline.cli.table_output import TABLE_FORMS, Form, print_table_as, with_form
from tta_pipeline.cli.verbs import Verb
from tta_pipeline.domain.locations import Locations
from tta_pipeline.util.nearest_names import name_choices

_SHOWN = ("normalisation", "clean_error", "p_value")


@click.command(
    cls=Verb,
    examples=[
        "tta-pipeline models check imagenet_c resnet50",
        "tta-pipeline models check imagenet_c resnet50 --limit 5000 --format markdown",
    ],
)
@click.argument("benchmark")
@click.argument("model")
@click.option("--limit", type=click.IntRange(1), default=1000, show_default=True, help="Number of clean images to "
              "evaluate, equally many per class.")  # fmt: skip
@click.option(
    "--seed", type=click.IntRange(0, 2**63 - 1), default=0, show_default=True, help="Seed that selects the images."
)
@with_device
@with_form(*TABLE_FORMS)
@click.option("-q", "--quiet", "is_quiet", is_flag=True, help="Print only the result.")
@plain_errors
def check_model(*, benchmark: str, model: str, limit: int, seed: int, device: str, form: Form, is_quiet: bool) -> None:
    """Check whether the mean and std of a model fit.

    Compares the error on clean images with the error under common values: ImageNet's mean and std, inputs from -1
    to 1, from 0 to 1 and from 0 to 255 and, for images of at most 64 pixels, CIFAR's. If one of them is better by
    more than chance, the exit status is 1. The test is McNemar's exact one-sided test on the same images, at 1 %
    divided by the number of values compared.
    """
    from tta_pipeline.benchmarks.load_files import load_all_benchmarks
    from tta_pipeline.domain.cells import CLEAN
    from tta_pipeline.errors import BenchmarkFileError, EvaluationError
    from tta_pipeline.evaluation.benchmark_model import load_benchmark_model
    from tta_pipeline.evaluation.device.leases import leased_device
    from tta_pipeline.evaluation.machine import default_decode_threads
    from tta_pipeline.evaluation.normalisation_fit import COLUMNS, check_normalisation
    from tta_pipeline.report.tables import Table
    from tta_pipeline.shards.benchmark_expectation import expected_for_benchmark
    from tta_pipeline.shards.shard_set import ShardSet
    from tta_pipeline.util.progress import log_reporter, quiet_reporter

    locations = Locations.from_environment()
    found = load_all_benchmarks(locations).benchmark(benchmark)
    if model not in found.models:
        known = name_choices(model, found.models, listed_in="its section models")
        raise BenchmarkFileError(f"{benchmark} has no model {model!r}; expected one of {known}")
    if not found.has_clean:
        raise EvaluationError(
            f"{benchmark} has no clean images to compare normalisations on; expected clean images: name them in "
            "images.clean"
        )
    shard_set = ShardSet.open(locations.shards(found.name, CLEAN), expected_for_benchmark(found, locations, CLEAN))
    loaded = load_benchmark_model(found, model, locations)
    tell = ignore_line if is_quiet else say
    reporter = quiet_reporter if is_quiet else log_reporter(say)
    with leased_device(device, tell) as leased:
        fits = check_normalisation(
            loaded, shard_set, image_size=found.image_size, limit=limit, seed=seed, device=leased,
            num_threads=default_decode_threads(),
            advance=reporter("clean images", min(limit, shard_set.manifest.num_samples)).advance,
        )  # fmt: skip
    print_table_as(Table(columns=COLUMNS, rows=fits.rows), form, _SHOWN)
    tell(f"{model}: {fits.verdict}")
    sys.exit(1 if fits.better else 0)
