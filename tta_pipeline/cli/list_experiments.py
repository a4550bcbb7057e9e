"""The verb `results list`."""

import sys

import click

from tta_pipeline.cli.answer_output import current_metrics
from tta_pipeline.cli.common import plain_errors, say, say_left_out
from tta_pipeline.cli.table_output import TABLE_FORMS, Form, print_table_as, with_form
from tta_pipeline.cli.verbs import Verb
from tta_pipeline.domain.locations import Locations

COLUMNS = ("experiment", "model", "method", "protocol", "num_streams", "num_recorded", "subset", "hyperparameters")


@click.command(
    cls=Verb,
    examples=[
        "tta-pipeline results list digits_c",
        "tta-pipeline results list digits_c --wide",
        "tta-pipeline results list digits_c --format csv",
    ],
)
@click.argument("benchmark")
@with_form(*TABLE_FORMS)
@plain_errors
def list_experiments(*, benchmark: str, form: Form) -> None:
    """List the experiments of a benchmark, with their progress.

    Includes the experiments of a matrix. A stream is recorded if each of its cells has a result; results of earlier
    code, settings or shards are marked. Faulty experiments are listed at the end, and the exit status is then 1.
    Weights are not read; use `doctor` to check them.
    """
    from tta_pipeline.benchmarks.load_files import load_all_benchmarks
    from tta_pipeline.report.experiment_table import experiment_table
    from tta_pipeline.report.plan_notes import plan_notes

    locations = Locations.from_environment()
    loaded = load_all_benchmarks(locations)
    found = loaded.benchmark(benchmark)
    print_table_as(experiment_table(found, locations), form, COLUMNS)
    if locations.metrics.exists():
        with current_metrics(locations) as connection:
            for note in plan_notes(connection, locations, found.file):
                say(note)
    faults = loaded.faults_of(benchmark)
    say_left_out(fault.sentence for fault in faults)
    if faults:
        sys.exit(1)
