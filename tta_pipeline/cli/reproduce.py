"""The verb `results reproduce`."""

import json
import sys
from pathlib import Path

import click

from tta_pipeline.cli.common import LocalPath, plain_errors, print_table, say, with_device
from tta_pipeline.cli.verbs import Verb


@click.command(
    cls=Verb,
    examples=[
        "tta-pipeline results reproduce published tent",
        "tta-pipeline results reproduce published tent --cell 'fog|5' --device cuda",
    ],
)
@click.argument("folder", metavar="DIR", type=LocalPath(exists=True, file_okay=False))
@click.argument("experiment", required=False)
@click.option("--cell", "cells", multiple=True, metavar="CELL", help="Only this cell, such as fog|5; can be repeated.")
@with_device
@click.option(
    "--within", type=click.FloatRange(0, 1), default=0.005, show_default=True,
    help="Largest difference of errors that counts as the same error.",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@plain_errors
def reproduce(
    *, folder: Path, experiment: str | None, cells: tuple[str, ...], device: str, within: float, as_json: bool
) -> None:
    """Run a published experiment again: do the results agree?

    DIR is a folder that `results publish` wrote. You need a benchmark of the same name with its shards and weights;
    settings are taken from DIR. Nothing in the data root changes. Prints "same hash" if every prediction is the
    same, "same error" if no cell's error differs by more than --within, otherwise "other error" with exit status 1.
    Differences in data, weights, code, settings, device, libraries and processor are listed. On a CPU, the
    published number of threads is used.
    """
    from dataclasses import asdict

    from tta_pipeline.benchmarks.load_files import load_all_benchmarks
    from tta_pipeline.domain.locations import Locations
    from tta_pipeline.errors import EvaluationError
    from tta_pipeline.evaluation.published import BENCHMARK_FILE, find_experiment
    from tta_pipeline.extras.reproduction.repetition import repeat
    from tta_pipeline.report.tables import Table
    from tta_pipeline.util.files import scratch_folder
    from tta_pipeline.util.software_versions import software_versions

    published = find_experiment(folder, experiment)
    name = published.plan.benchmark
    locations = Locations.from_environment()
    benchmarks = load_all_benchmarks(locations).benchmarks
    if name not in benchmarks:
        file = name.partition("/")[0]
        raise EvaluationError(
            f"There is no benchmark {name} in {locations.benchmark_files}; expected the benchmark file of {folder}: "
            f"copy {folder / BENCHMARK_FILE} to {locations.benchmark_files / file}.yaml, correct its paths, and make "
            f"its shards with `tta-pipeline run {name} --part prepare`"
        )
    with scratch_folder("reproduce") as scratch:
        found = repeat(
            published, benchmarks[name], locations, scratch, keys=cells, device=device,
            versions=software_versions(), tell=say,
        )  # fmt: skip
    outcome = found.outcome(within)
    if as_json:
        answer = {
            "outcome": outcome, "largest_change": found.largest_change, "differs": found.differs,
            "around": found.around,
            "cells": [asdict(cell) for cell in found.cells],
        }  # fmt: skip
        click.echo(json.dumps(answer, indent=1))
    else:
        print_table(
            Table(
                columns=("cell", "published_error", "error", "same_predictions", "differs"),
                rows=tuple(
                    (cell.name, cell.published_error, cell.error, cell.same_hash, ", ".join(cell.differs) or "nothing")
                    for cell in found.cells
                ),
            )
        )
        click.echo(
            _sentence(outcome, found.largest_change, [*found.differs, *map(_then_and_now, found.around.items())])
        )
    sys.exit(1 if outcome == "other error" else 0)


def _then_and_now(changed: tuple[str, tuple[str, str]]) -> str:
    name, (then, now) = changed
    return f"{name} {then} then, {now} now"


def _sentence(outcome: str, largest_change: float, differs: list[str]) -> str:
    how = "" if outcome == "same hash" else f", errors differ by up to {largest_change:.2%}"
    what = f"; what differs: {', '.join(differs)}" if differs else "; nothing else differs"
    return f"{outcome}{how}{what}"
