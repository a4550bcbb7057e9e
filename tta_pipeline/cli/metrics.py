"""The verb `metrics`."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tta_pipeline.cli.answer_output import Output, current_metrics, honest_marks, with_output
from tta_pipeline.cli.common import LocalPath, plain_errors, say, say_left_out
from tta_pipeline.cli.table_output import choose_columns
from tta_pipeline.cli.verbs import Verb
from tta_pipeline.domain.locations import Locations
from tta_pipeline.util.nearest_names import name_choices
from tta_pipeline.util.plurals import count_of

if TYPE_CHECKING:
    from tta_pipeline.benchmarks.benchmark import Benchmark
    from tta_pipeline.report.answers import Answer
    from tta_pipeline.report.published_figures import KeptError, PublishedError
    from tta_pipeline.report.tables import Table

_LEADERBOARD_COLUMNS = (
    "benchmark", "generated", "untrained", "experiment", "mean_error", "sd_error", "tail_error", "mean_error_at_5",
    "clean_error", "ms_per_image", "num_cells", "subset", "num_runs", "num_diverged", "without_file", "shift_set",
)  # fmt: skip
_CORRUPTION_COLUMNS = (
    "benchmark", "generated", "untrained", "corruption", "experiment", "mean_error", "sd_error", "error_at_5",
    "mean_ece", "num_cells", "subset", "num_runs", "shift_set",
)  # fmt: skip
_AGREES = (
    "A mean error agrees if it is no further from the published one, over the same cells, than two samples of images "
    "of these numbers are apart in 95 % of cases (`chance_error`); on the very same images, less is to be expected."
)
_PUBLISHED_COLUMNS = (
    "benchmark", "generated", "experiment", "published_as", "mean_error", "published_error", "error_change",
    "chance_error", "agrees", "num_cells", "largest_change", "largest_at", "subset", "source", "shift_set",
)  # fmt: skip


@click.command(
    cls=Verb,
    examples=[
        "tta-pipeline metrics",
        "tta-pipeline metrics --benchmark digits_c --wide",
        "tta-pipeline metrics --by corruption --format latex --output table.tex",
        "tta-pipeline metrics --format parquet --output leaderboard.parquet",
        "tta-pipeline metrics --published figures.csv",
        "tta-pipeline metrics --published unaggregated_results.csv --line Standard_R50",
        'tta-pipeline metrics --sql "FROM corruption_errors ORDER BY mean_error DESC"',
    ],
)
@click.option("--by", type=click.Choice(["corruption"]), help="A line for each corruption and experiment.")
@click.option("--benchmark", metavar="NAME", help="Only this benchmark.")
@click.option("--published", "published_file", type=LocalPath(dir_okay=False, exists=True),
              metavar="FILE", help="Compare with the published errors in this CSV file.")  # fmt: skip
@click.option("--line", metavar="NAME", help="Compare all experiments with this line of the file; else each with the "
              "line of its name.")  # fmt: skip
@click.option("--sql", help="Ask this question instead; the database is open for reading only.")
@with_output
@plain_errors
def metrics(
    *,
    by: str | None,
    benchmark: str | None,
    published_file: Path | None,
    line: str | None,
    sql: str | None,
    output: Output,
) -> None:
    """Print the leaderboard (text, LaTeX, CSV), or ask it in SQL.

    People get mean errors with their 95 % intervals over images, and the cost of an image; --wide and programs get all
    columns. A table is as wide as the terminal, and 80 columns elsewhere. The best of comparable results is bold.
    --published answers whether a run agrees with a paper. Tables and views: docs/metrics.md; questions with their SQL:
    docs/queries.md. Damaged and foreign records count
    nowhere. They are listed after the answer, and the exit status is then 1.
    """
    if sql is not None and (by or benchmark):
        raise click.UsageError("found --sql with --by or --benchmark; expected them without --sql")
    if published_file and (by or sql is not None):
        raise click.UsageError("found --published with --by or --sql; expected it without them")
    if line and not published_file:
        raise click.UsageError("found --line without --published; expected a file of published errors")
    locations = Locations.from_environment()
    with (
        current_metrics(locations) as connection,
        _open_answer(
            connection, by=by, benchmark=benchmark, sql=sql, published_file=published_file, line=line
        ) as answer,
    ):
        if sql is not None:
            output.write(answer, None)
            return
        known = _evaluated_benchmarks(connection)
        if known and benchmark not in (None, *known):
            raise click.UsageError(
                f"--benchmark is {benchmark!r}; expected one with results: "
                f"{name_choices(benchmark, known, listed_in='tta-pipeline metrics')}"
            )
        if not known:
            from tta_pipeline.results.database.database import EVALUATE_FIRST

            say(f"no results: {EVALUATE_FIRST}")
            if output.is_for_people:
                return
        before = output.place(_make_notes(connection, locations, benchmark, known))
        if published_file:
            _write_agreement(answer, published_file, output, before)
        elif by or not output.is_for_people:
            output.write(answer, _CORRUPTION_COLUMNS, before=before)
        else:
            _write_leaderboard(output.read(answer), locations, output, before)


def _make_notes(
    connection: Any, locations: Locations, benchmark: str | None, evaluated: Sequence[str]
) -> "Sequence[str]":
    """Return what readers of the answer must know: of models, of uneven cells, and of results by earlier code."""
    from tta_pipeline.report.earlier_results import earlier_notes
    from tta_pipeline.shards.uneven_cells import find_uneven_cells

    asked = _load_asked(locations, benchmark)
    uneven = [
        f"{each.name}: {found}"
        for each in asked
        if each.file in evaluated
        for found in find_uneven_cells(each, locations, compares_photographs=False).values()
    ]
    return [*honest_marks(connection, benchmark=benchmark, uneven=uneven), *earlier_notes(connection, asked)]


def _load_asked(locations: Locations, benchmark: str | None) -> "Sequence[Benchmark]":
    """Return the benchmarks in the file *benchmark*, or in all files."""
    from tta_pipeline.benchmarks.load_files import load_all_benchmarks

    return [each for each in load_all_benchmarks(locations).benchmarks.values() if benchmark in (None, each.file)]


def _evaluated_benchmarks(connection: Any) -> list[str]:
    sql = "SELECT DISTINCT benchmark FROM evaluations WHERE is_latest ORDER BY benchmark"
    return [name for (name,) in connection.execute(sql).fetchall()]


def _open_answer(
    connection: Any,
    *,
    by: str | None,
    benchmark: str | None,
    sql: str | None,
    published_file: Path | None,
    line: str | None,
) -> "Answer":
    from tta_pipeline.report import queries
    from tta_pipeline.report.answers import Answer

    if published_file is not None:
        from tta_pipeline.report.published_figures import AGREEMENT, as_parameters

        found = _read_lines(published_file, line)
        return Answer(connection, AGREEMENT, [*as_parameters(found, _read_kept(found, benchmark)), benchmark, line])
    if sql is not None:
        return Answer(connection, sql)
    return Answer(connection, queries.BY_CORRUPTION if by else queries.ALL_LEADERBOARDS, [benchmark])


def _read_lines(path: Path, line: str | None) -> "list[PublishedError]":
    """Return the published errors in *path*, which must have the *line* that was asked for."""
    from tta_pipeline.report.published_figures import read_published

    found = read_published(path)
    names = dict.fromkeys(each.published_as for each in found)  # in the order of the file
    if line is not None and line not in names:
        raise click.UsageError(f"--line is {line!r}; expected one of {name_choices(line, names, listed_in=str(path))}")
    return found


def _read_kept(published: "Sequence[PublishedError]", benchmark: str | None) -> "Sequence[KeptError]":
    """Return the errors on the *published* cells of the experiments of *benchmark*, or of all, by their predictions."""
    from tta_pipeline.domain.cells import Cell
    from tta_pipeline.report.pages.leaderboard_intervals import kept_errors
    from tta_pipeline.util.progress import log_reporter

    locations = Locations.from_environment()
    cells = {Cell(corruption=each.corruption, severity=each.severity) for each in published}
    return kept_errors(_load_asked(locations, benchmark), locations, cells, log_reporter(say))


def _write_agreement(answer: "Answer", path: Path, output: Output, before: Sequence[str]) -> None:
    if not output.is_for_people:
        output.write(answer, None)
        return
    table = output.read(answer)
    if not table.rows:
        say(f"no experiment has cells and the name of a line in {path}: name the line by --line, or correct the names")
        return
    output.write_table(choose_columns(table, output.form, _PUBLISHED_COLUMNS), before=[*before, _AGREES])


def _write_leaderboard(table: "Table", locations: Locations, output: Output, before: Sequence[str]) -> None:
    """Write the leaderboard for people: with intervals; in LaTeX with marks on rows that may be as good as the best."""
    from tta_pipeline.benchmarks.load_files import load_all_benchmarks
    from tta_pipeline.report.formats import as_latex
    from tta_pipeline.report.pages.leaderboard_intervals import NOTE, OTHER_SEEDS, add_intervals_to_all
    from tta_pipeline.util.progress import log_reporter

    loaded = load_all_benchmarks(locations)
    named = set(table.column("benchmark"))
    say_left_out(
        f"intervals{f' of {fault.experiment}' if fault.experiment else ''}, since the benchmark file has a fault: "
        f"{fault.sentence}"
        for fault in loaded.faults
        if fault.path.stem in named and fault.experiment in (None, *table.column("experiment"))
    )
    is_latex = output.form.name == "latex"
    judged, leading = add_intervals_to_all(
        table, loaded.benchmarks.values(), locations, log_reporter(say), finds_leading=is_latex
    )
    if not is_latex:
        output.write_table(choose_columns(judged, output.form, _LEADERBOARD_COLUMNS), before=before)
        return
    # A paper says in its caption what all rows have in common.
    numbers = set(judged.column("num_cells"))
    columns = [name for name in _LEADERBOARD_COLUMNS if name != "num_cells" or len(numbers) != 1]
    over = f" Means over {count_of(numbers.pop(), 'cell')}." if len(numbers) == 1 else ""
    seeds = f" {OTHER_SEEDS}" if len(set(judged.column("num_runs"))) > 1 else ""
    shown = choose_columns(judged, output.form, columns)
    output.write_text(as_latex(shown, leading=leading, notes=[*before, NOTE + over + seeds]))
