"""The verb `compare`."""

import sys
from typing import TYPE_CHECKING, Any

import click

from tta_pipeline.cli.answer_output import Output, current_metrics, honest_marks, with_output
from tta_pipeline.cli.common import plain_errors, say, say_left_out
from tta_pipeline.cli.table_output import choose_columns
from tta_pipeline.cli.verbs import Verb
from tta_pipeline.domain.locations import Locations
from tta_pipeline.util.nearest_names import name_choices
from tta_pipeline.util.plurals import count_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tta_pipeline.benchmarks.benchmark import Benchmark
    from tta_pipeline.report.significance.versus import CommonCells, Comparison, Evaluated, PairedCells
    from tta_pipeline.report.tables import Table
    from tta_pipeline.results.evaluation_record import Evaluation

_LONGEST_NAME = 14
"""Characters of an experiment's name in a heading; for longer ones the columns are called A and B."""
_RUN_COLUMNS = (
    "benchmark", "dataset", "generated", "experiment", "corruption", "severity", "error_a", "error_b", "error_change",
    "speed_ratio", "seed", "subset", "same_settings", "same_predictions",
)  # fmt: skip


@click.command(
    cls=Verb,
    examples=[
        "tta-pipeline compare tent norm",
        "tta-pipeline compare tent norm --benchmark digits_c --corruption fog",
        "tta-pipeline compare tent norm --corruption fog --classes --rows 5",
        "tta-pipeline compare tent alice:tent",
        "tta-pipeline compare released candidate --benchmark mine --fail-if-worse 1",
        "tta-pipeline compare --runs 5a0c2f51 91be7d30",
    ],
)
@click.argument("first", metavar="A")
@click.argument("second", metavar="B")
@click.option("--benchmark", metavar="NAME", help="Only this benchmark.")
@click.option("--corruption", metavar="NAME", help="Only this corruption; its severities are pooled in one test.")
@click.option("--cells", "by_cell", is_flag=True, help="A row per cell instead of per corruption.")
@click.option("--classes", "by_class", is_flag=True, help="A row per class, largest changes first.")
@click.option("--runs", "are_runs", is_flag=True, help="A and B are Dagster runs: show the cells that both "
              "evaluated, side by side. The first characters of a run's id are enough.")  # fmt: skip
@click.option("--fail-if-worse", "points", type=click.FloatRange(0, 100), metavar="POINTS", help="Exit with status 1 "
              "unless it is shown that B is not worse than A by more than POINTS percentage points.")  # fmt: skip
@with_output
@plain_errors
def compare(
    *,
    first: str,
    second: str,
    benchmark: str | None,
    corruption: str | None,
    by_cell: bool,
    by_class: bool,
    are_runs: bool,
    points: float | None,
    output: Output,
) -> None:
    """Compare two experiments, or two runs: is one better?

    Compares A and B on the same samples of the same streams, in each benchmark that has both. The first sentence of
    the output shows which one is better, by how much, and whether this is more than chance. A row per corruption
    follows. NAME:experiment is an experiment that you took from others with `results add`.

    In CI, use --fail-if-worse: the exit status is 1 unless B's mean error minus A's is below POINTS with 97.5 %
    confidence.
    """
    if are_runs and (benchmark or corruption or by_cell or by_class or points is not None):
        raise click.UsageError(
            "--runs is given with --benchmark, --corruption, --cells, --classes or --fail-if-worse; expected these "
            "options only with experiments: leave them out"
        )
    if by_cell and by_class:
        raise click.UsageError("--cells and --classes are both given; expected only one of them: leave one out")
    locations = Locations.from_environment()
    if are_runs:
        _compare_runs(locations, (first, second), output)
        return
    found = _pair_cells(locations, (first, second), benchmark, corruption, needs_one=points is not None)
    answers = [each.pooled() for each in found]
    if by_cell or by_class:
        details = [each.by_cell() if by_cell else each.by_class() for each in found]
    else:
        details = [() if corruption else each.by_corruption() for each in found]
    rows = [row for answer, others in zip(answers, details, strict=True) for row in (answer, *others)]
    _write_comparisons(rows, [_say_answer(each, len(answers)) for each in answers], output)
    if points is not None:
        (answer,) = answers
        say(answer.say_margin(points))  # on standard error: a program reads the answer
        sys.exit(0 if answer.keeps_margin(points) else 1)


def _compare_runs(locations: Locations, beginnings: tuple[str, str], output: Output) -> None:
    from tta_pipeline.report import queries
    from tta_pipeline.report.answers import Answer

    with current_metrics(locations) as connection:
        runs = [_complete_run_id(connection, run) for run in beginnings]
        with Answer(connection, queries.COMPARISON, runs) as answer:
            output.write(answer, _RUN_COLUMNS, before=output.place(honest_marks(connection, runs=runs)))


def _complete_run_id(connection: Any, beginning: str) -> str:
    """Return the id of the only run whose id begins with *beginning*."""
    from tta_pipeline.report import queries
    from tta_pipeline.report.tables import query
    from tta_pipeline.util.short_lists import abbreviate_list

    found = query(connection, queries.RUNS, [beginning]).column("run_id")
    if beginning in found:
        return beginning
    if len(found) != 1:
        some = f": {abbreviate_list(found)}" if found else ""
        raise click.UsageError(
            f"The id {beginning!r} matches {count_of(len(found), 'run')}{some}; expected exactly one run: list all "
            "with `tta-pipeline query 'FROM runs'`"
        )
    return str(found[0])


def _pair_cells(
    locations: Locations, names: tuple[str, str], benchmark: str | None, corruption: str | None, *, needs_one: bool
) -> "Sequence[PairedCells]":
    """Return the common cells of two experiments, of one corruption or of all, in one benchmark or in each.

    If *needs_one*, the user must name one of several benchmarks: a default would leave out unevaluated or faulty ones.
    """
    from tta_pipeline.benchmarks.load_files import load_all_benchmarks
    from tta_pipeline.evaluation.published import added_experiments
    from tta_pipeline.util.progress import log_reporter

    loaded = load_all_benchmarks(locations)
    left_out = [fault.sentence for fault in loaded.faults if fault.experiment in (None, *names)]
    say_left_out(left_out)
    asked = [loaded.benchmark(benchmark)] if benchmark else list(loaded.benchmarks.values())
    known = {each.name: (*each.experiments, *added_experiments(locations, each.name)) for each in asked}
    known_names = dict.fromkeys(name for several in known.values() for name in several)
    if unknown := [name for name in names if name not in known_names]:
        choice = name_choices(unknown, known_names, listed_in="`tta-pipeline results list BENCHMARK`")
        raise click.UsageError(f"There is no experiment {' and no '.join(unknown)}; expected one of {choice}")
    both = [each for each in asked if set(names) <= set(known[each.name])]
    if needs_one and not benchmark and (left_out or len(both) > 1):
        raise click.UsageError(
            "--fail-if-worse is given without --benchmark, but both experiments are in "
            f"{', '.join(each.name for each in both) or 'no benchmark'}"
            f"{', and some benchmark files are faulty' if left_out else ''}; expected one benchmark: name it with "
            "--benchmark"
        )
    found = [_common_cells(each, names, locations) for each in both]
    for each in found:
        _say_unfinished(each)
    evaluated = [each for each in found if each.cells]
    for each in evaluated:
        say_seeds(each)
    if not evaluated:
        raise click.UsageError(_say_nothing_common(names, found))
    if corruption and not any(corruption in each.corruptions for each in evaluated):
        names_there = ", ".join(dict.fromkeys(name for each in evaluated for name in each.corruptions))
        raise click.UsageError(
            f"--corruption is {corruption!r}; expected a corruption with results of both experiments ({names_there})"
        )
    return [
        each.pair(log_reporter(say), corruption=corruption)
        for each in evaluated
        if corruption in (None, *each.corruptions)
    ]


def _say_nothing_common(names: tuple[str, str], found: "Sequence[CommonCells]") -> str:
    """Return why the two experiments, which benchmarks have both, cannot be compared in any."""
    of_a, of_b = (_protocols([each.a for each in found]), _protocols([each.b for each in found]))
    if of_a and of_b and not set(of_a) & set(of_b):
        return (
            f"{names[0]} has results of the protocol {', '.join(of_a)}, but {names[1]} of {', '.join(of_b)}; expected "
            "the same protocol: compare two experiments that have the same one"
        )
    for name, protocols in zip(names, (of_a, of_b), strict=True):
        if not protocols and ":" not in name:
            return (
                f"{name} has no results by its current code, data and settings; expected an evaluation: run "
                f"`tta-pipeline run {found[0].benchmark.name} --experiment {name}`"
            )
    return (
        f"{names[0]} and {names[1]} have no results for the same stream and seed, in "
        f"{count_of(len(found), 'benchmark')} with both experiments; expected results on the same cells and seeds: "
        "evaluate both on these"
    )


def _protocols(experiments: "Sequence[Evaluated]") -> list[str]:
    cells = (cell for each in experiments for cell in each.all_counted_cells().values())
    return list(dict.fromkeys(cell.row.setup.protocol for cell in cells))


def _common_cells(benchmark: "Benchmark", names: tuple[str, str], locations: Locations) -> "CommonCells":
    from tta_pipeline.report.significance.versus import CommonCells

    a, b = (_results_of(benchmark, name, locations) for name in names)
    return CommonCells.find(a, b, benchmark, locations)


def _results_of(benchmark: "Benchmark", name: str, locations: Locations) -> "Evaluated":
    """Return the experiment *name* with its results: from *benchmark*, or added as `<source>:<experiment>`."""
    from tta_pipeline.evaluation.experiment_results import ExperimentResults
    from tta_pipeline.evaluation.published import read_added

    if ":" in name:
        return read_added(locations, benchmark.name, name)
    return ExperimentResults(benchmark=benchmark, experiment_name=name, locations=locations)


def _say_unfinished(found: "CommonCells") -> None:
    """Print how many cells are left out because A or B has no result with the current code, data and settings."""
    if found.num_unfinished:
        num_cells = len(found.cells) + found.num_unfinished
        say(
            f"compared on {len(found.cells)} of {num_cells} cells: the others lack results with the "
            f"current code, data and settings; to evaluate them: tta-pipeline run {found.benchmark.file}"
        )


def say_seeds(found: "CommonCells") -> None:
    """Print which seeds are compared if one has others: its mean in the leaderboard is over all its seeds."""
    if found.a.seeds == found.b.seeds:
        return
    (row_a, row_b) = (each.row for each in found.cells[0])
    runs = ((found.a, row_a), (found.b, row_b))
    seeds = tuple(sorted({cell.row.cell.seed for cell, _ in found.cells}))
    fixed = [experiment.experiment_name for experiment, row in runs if row.ignores_stream]
    if fixed and all(experiment.seeds == seeds for experiment, row in runs if not row.ignores_stream):
        say(f"compared on {_name_seeds(seeds)}: {fixed[0]} predicts the same on every seed")
    else:
        say(f"compared {' with '.join(_name_runs(each, row, seeds) for each, row in runs)}")


def _name_runs(experiment: "Evaluated", row: "Evaluation", seeds: tuple[int, ...]) -> str:
    name = experiment.experiment_name
    if row.cell.stream_order == "stored":
        return f"the stored order of {name}"
    others = "" if experiment.seeds == seeds else f" (of its {_name_seeds(experiment.seeds)})"
    return f"{_name_seeds(seeds)} of {name}{others}"


def _name_seeds(seeds: tuple[int, ...]) -> str:
    return f"seed{'' if len(seeds) == 1 else 's'} {', '.join(map(str, seeds))}"


def _say_answer(answer: "Comparison", num_benchmarks: int) -> str:
    return f"{answer.benchmark}: {answer.sentence}" if num_benchmarks > 1 else answer.sentence


def _write_comparisons(rows: "Sequence[Comparison]", sentences: "Sequence[str]", output: Output) -> None:
    """Write *rows*; people read the *sentences* first."""
    from dataclasses import asdict, fields

    from tta_pipeline.report.significance.versus import Comparison
    from tta_pipeline.report.tables import Table, TableAnswer
    from tta_pipeline.results.reader_notes import reader_notes

    untrained = [row.experiment_a for row in rows if row.untrained_a]
    untrained += [row.experiment_b for row in rows if row.untrained_b]
    notes = output.place(
        reader_notes(generated=any(row.generated for row in rows), untrained=tuple(dict.fromkeys(untrained)))
    )
    names = tuple(field.name for field in fields(Comparison))
    answer = TableAnswer(Table(columns=names, rows=tuple(tuple(asdict(row).values()) for row in rows)))
    if output.is_for_people:
        long_names = [] if output.form.is_wide else _say_letters(rows[0])
        output.write_table(_shown(output.read(answer), rows[0], output), before=[*sentences, *notes, *long_names])
    else:
        output.write(answer, ())


def _headings(first: "Comparison") -> tuple[str, str]:
    """Return what the columns call the two experiments: their names, or A and B if a name is too long."""
    names = (first.experiment_a, first.experiment_b)
    return names if max(map(len, names)) <= _LONGEST_NAME else ("A", "B")


def _say_letters(first: "Comparison") -> list[str]:
    """Return which experiments A and B are, if the columns have these letters."""
    names = (first.experiment_a, first.experiment_b)
    return [] if _headings(first) == names else ["In the table, A is {} and B is {}.".format(*names)]


def _shown(table: "Table", first: "Comparison", output: Output) -> "Table":
    """Return the columns for people, with the experiments' names instead of A and B if they are short.

    The gain of A is the error of B - the error of A. The first row of classes is over all classes. A p-value at the
    limit of the draws is marked with <=. If all predictions are the same, there are no intervals.
    """
    from dataclasses import replace

    if output.form.is_wide:
        return choose_columns(table, output.form, ())
    if all(table.column("same_predictions")):
        table = table.without("error_change_low", "error_change_high", "min_detectable_diff")
    a, b = _headings(first)
    error_a, error_b = f"{a} error", f"{b} error"
    named = {"error_a": error_a, "error_b": error_b, "class_name": "class", "min_detectable_diff": "shown_from"}
    streams = [name for name in ("stream", "seed") if len({*table.column(name)} - {None}) > 1]
    what = ["class"] if any(table.column("class_name")) else ["corruption", "severity"]
    columns = ("benchmark", "generated", *streams, *what, error_a, error_b, "error_change", "better", "p_holm",
               "shown_from", "dataset")  # fmt: skip
    p_values = zip(table.column("p_holm"), table.column("p_is_bound"), strict=True)
    table = table.with_values("p_holm", [f"<= {p:.2g}" if is_bound else p for p, is_bound in p_values])
    table = table.with_values("class_name", [name or "all" for name in table.column("class_name")])
    renamed = replace(table, columns=tuple(named.get(name, name) for name in table.columns))
    shown = choose_columns(renamed, output.form, columns)
    return replace(shown, columns=tuple(f"{a} gain" if name == "error_change" else name for name in shown.columns))
