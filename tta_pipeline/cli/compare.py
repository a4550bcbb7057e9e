"""The verb `compare`."""

from typing import TYPE_CHECKING, Any

import click

from tta_pipeline.cli.answer_output import Output, current_metrics, say_if_generated, with_output
from tta_pipeline.cli.common import plain_errors, say, say_left_out
from tta_pipeline.cli.verbs import Verb
from tta_pipeline.util.locations import Locations

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tta_pipeline.report.significance.versus import Comparison


@click.command(
    cls=Verb,
    examples=[
        "tta-pipeline compare tent norm",
        "tta-pipeline compare tent norm --format markdown",
        "tta-pipeline compare --runs 5a0c2f51 91be7d30",
    ],
)
@click.argument("first", metavar="A")
@click.argument("second", metavar="B")
@click.option("--runs", "are_runs", is_flag=True, help="A and B are runs: show the cells that both evaluated, side by "
              "side. The beginning of a run's id is enough.")  # fmt: skip
@with_output
@plain_errors
def compare(*, first: str, second: str, are_runs: bool, output: Output) -> None:
    """Compare two experiments, or two runs: is one better?

    Experiments A and B are compared on the same samples: is one better by more than chance? Over all cells and cell by
    cell, in each benchmark that has both.
    """
    locations = Locations.from_environment()
    if are_runs:
        _compare_runs(locations, (first, second), output)
    else:
        _compare_experiments(locations, (first, second), output)


def _compare_runs(locations: Locations, beginnings: tuple[str, str], output: Output) -> None:
    from tta_pipeline.report import queries
    from tta_pipeline.report.answers import Answer

    with current_metrics(locations) as connection:
        runs = [_complete_run_id(connection, run) for run in beginnings]
        with Answer(connection, queries.COMPARISON, runs) as answer:
            say_if_generated(connection, runs)
            output.write(answer)


def _complete_run_id(connection: Any, beginning: str) -> str:
    """Return the id of the only run whose id begins with *beginning*."""
    from tta_pipeline.report import queries
    from tta_pipeline.report.tables import query

    found = query(connection, queries.RUNS, [beginning]).column("run_id")
    if beginning in found:
        return beginning
    if len(found) != 1:
        some = f": {', '.join(found[:5])}{', ...' if len(found) > 5 else ''}" if found else ""
        raise click.UsageError(
            f"found {len(found)} runs whose id begins with {beginning!r}{some}; expected one: list them with "
            'tta-pipeline metrics --sql "FROM runs"'
        )
    return str(found[0])


def _compare_experiments(locations: Locations, names: tuple[str, str], output: Output) -> None:
    """Compare two experiments in each benchmark that has both."""
    from dataclasses import asdict, fields

    import duckdb
    import pyarrow as pa

    from tta_pipeline.report.answers import Answer
    from tta_pipeline.report.significance.versus import Comparison
    from tta_pipeline.report.tables import GENERATED_NOTE

    rows = [asdict(row) for row in _comparisons(locations, names)]
    if any(row["generated"] for row in rows):
        say(f"generated: {GENERATED_NOTE}")
    columns = {field.name: [row[field.name] for row in rows] for field in fields(Comparison)}
    with duckdb.connect() as connection:
        connection.register("comparisons", pa.table(columns))
        with Answer(connection, "FROM comparisons") as answer:
            output.write(answer)


def _comparisons(locations: Locations, names: tuple[str, str]) -> "Sequence[Comparison]":
    from tta_pipeline.benchmarks.load_files import load_all_benchmarks
    from tta_pipeline.evaluation.experiment_results import ExperimentResults
    from tta_pipeline.report.significance.judged_cells import recorded_places
    from tta_pipeline.report.significance.versus import compare_experiments
    from tta_pipeline.util.progress import log_reporter

    loaded = load_all_benchmarks(locations)
    say_left_out(fault.sentence for fault in loaded.faults if fault.experiment in (None, *names))
    both = [each for each in loaded.benchmarks.values() if set(names) <= set(each.experiments)]
    pairs = [
        [ExperimentResults(benchmark=each, experiment_name=name, locations=locations) for name in names]
        for each in both
    ]
    evaluated = [(a, b) for a, b in pairs if recorded_places(a).keys() & recorded_places(b).keys()]
    if not evaluated:
        raise click.UsageError(
            f"found {len(both)} benchmarks with experiments {names[0]} and {names[1]}, and in none a stream and seed "
            "with results of both; expected one: evaluate both on the same cells"
        )
    return [row for a, b in evaluated for row in compare_experiments(a, b, log_reporter(say))]
