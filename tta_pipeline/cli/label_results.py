"""The verb `results label`."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from tta_pipeline.cli.common import exit_with_error, plain_errors, with_reporter
from tta_pipeline.cli.verbs import Verb

if TYPE_CHECKING:
    from tta_pipeline.util.console import ConsoleReporter


@click.command(
    cls=Verb,
    examples=[
        "tta-pipeline results label mine labels.csv",
        "tta-pipeline results label mine labels.csv --cell 'fog|5'",
    ],
)
@click.argument("benchmark")
@click.argument("path", metavar="FILE", type=click.Path(path_type=Path, dir_okay=False))
@click.option("--cell", "cells", multiple=True, metavar="CELL", help="Only this cell, such as fog|5; can be repeated. "
              "By default all that have shards without classes.")  # fmt: skip
@plain_errors
@with_reporter
def label_results(benchmark: str, path: Path, *, cells: tuple[str, ...], reporter: "ConsoleReporter") -> None:
    r"""Add labels that came later; no image is evaluated again.

    FILE is CSV with the columns key and class: a line for each sample of the cells, by its key in the shards or its
    file name. The labels are kept beside the shards, and records of finished cells get the error, calibration and all
    else that the kept predictions decide; top-5 error, likelihood and Brier score stay unknown. A list with an unknown
    key or class, a missing sample, or two lines for one is refused, and nothing is changed. A corrected list replaces
    the labels.
    """
    from tta_pipeline.benchmarks.load_files import load_all_benchmarks
    from tta_pipeline.evaluation.experiment_results import ExperimentResults
    from tta_pipeline.evaluation.later_labels import complete_records, match_labels, publish_labels, unlabelled_sets
    from tta_pipeline.results.database.database import publish_metrics
    from tta_pipeline.util.locations import Locations
    from tta_pipeline.util.partitions import CLEAN, parse_key

    locations = Locations.from_environment()
    described = load_all_benchmarks(locations).benchmark(benchmark)
    every = (*described.cells, CLEAN)
    asked = tuple(parse_key(cell, every) for cell in cells) or every
    found = unlabelled_sets(described, locations, asked)
    if not found:
        exit_with_error(f"{benchmark} has no shards without classes in these cells; expected some: make them")
    locations.require_own(found[0].folder)
    publish_labels(match_labels(path, found))
    labelled = [each.manifest.cell for each in found]
    for number, name in enumerate(described.experiments, 1):
        results = ExperimentResults(benchmark=described, experiment_name=name, locations=locations)
        num_completed = sum(1 for _ in complete_records(results, labelled))
        reporter.report_finished(
            f"{name}: {num_completed} records completed", {"experiment": name, "num_completed": num_completed},
            number=number, total=len(described.experiments), what="experiments",
        )  # fmt: skip
    for note in publish_metrics(locations, progress=reporter).notes:
        reporter.say(note)
