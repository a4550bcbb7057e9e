"""The verb `leaderboard`."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tta_pipeline.cli.answer_output import Output, current_metrics, notes_of, with_output
from tta_pipeline.cli.common import LocalPath, plain_errors, say, say_left_out
from tta_pipeline.cli.table_output import choose_columns
from tta_pipeline.cli.verbs import Verb
from tta_pipeline.domain.locations import Locations
from tta_pipeline.util.nearest_names import name_choices
from tta_pipeline.util.plurals import count_of

if TYPE_CHECKING:
    from tta_pipeline.benchmarks.benchmark import Benchmark
    from tta_pipeline.report.answers import Answer
    from tta_pipeline.report.intervals import Intervals
    from tta_pipeline.report.published_figures import KeptError, PublishedError
    from tta_pipeline.report.tables import Table

_LEADERBOARD_COLUMNS = (
    "benchmark", "untrained", "experiment", "protocol", "generated", "mean_error", "sd_error",
    "error_worst_10pct_seeds", "mean_error_at_5", "clean_error", "ms_per_image", "num_cells", "subset", "num_runs",
    "num_diverged", "without_file", "dataset",
)  # fmt: skip
_CORRUPTION_COLUMNS = (
    "benchmark", "untrained", "corruption", "experiment", "protocol", "generated", "mean_error", "sd_error",
    "error_at_5", "mean_ece", "num_cells", "subset", "num_runs", "dataset",
)  # fmt: skip
_AGREES = (
    "A mean error agrees if it is no further from the published one, over the same cells, than chance allows: two "
    "samples of so many images are that near in 95 % of cases. On the very same images, expect a smaller difference."
)
_PUBLISHED_COLUMNS = (
    "benchmark", "generated", "experiment", "mean_error", "published_as", "verdict", "published_error", "num_cells",
    "num_published", "chance_error", "error_change", "largest_change", "largest_at", "subset", "source", "dataset",
)  # fmt: skip


class PublishedTable(LocalPath):
    """A CSV file of published errors, or the name of a table that the project ships."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the path of the file or of the shipped table."""
        from tta_pipeline.report.published_figures import shipped_tables

        shipped = shipped_tables().get(str(value))
        return shipped if shipped and not Path(value).exists() else super().convert(value, param, ctx)


@click.command(
    cls=Verb,
    examples=[
        "tta-pipeline leaderboard",
        "tta-pipeline leaderboard --benchmark digits_c --wide",
        "tta-pipeline leaderboard --by corruption --output table.tex",
        "tta-pipeline leaderboard --output leaderboard.parquet",
        "tta-pipeline leaderboard --reference figures.csv",
        "tta-pipeline leaderboard --reference robustbench_imagenet_c --reference-row Standard_R50",
    ],
)
@click.option("--by", type=click.Choice(["corruption"]), help="A row per corruption and experiment.")
@click.option("--benchmark", metavar="NAME", help="Only this benchmark.")
@click.option("--reference", "published_file", type=PublishedTable(dir_okay=False, exists=True), metavar="FILE",
              help="Compare with published errors: a CSV file, or eata_imagenet_c or robustbench_imagenet_c, which "
              "are shipped.")  # fmt: skip
@click.option("--reference-row", "line", metavar="NAME", help="Compare all experiments with this row of FILE. "
              "Default: the row with the experiment's name.")  # fmt: skip
@with_output
@plain_errors
def leaderboard(
    *,
    by: str | None,
    benchmark: str | None,
    published_file: Path | None,
    line: str | None,
    output: Output,
) -> None:
    """Print the leaderboard: text, LaTeX, CSV and others.

    Shows mean errors with 95 % intervals over images, and the cost per image. The best of comparable results is
    bold. --wide, --json and files have all columns. --reference compares your run with a paper. Damaged results are
    listed below the table, count nowhere, and make the exit status 1.
    """
    if published_file and by:
        raise click.UsageError("--reference and --by are both given; expected only one of them: leave one out")
    if line and not published_file:
        raise click.UsageError(
            "--reference-row is given without --reference; expected a file of published errors: add --reference FILE"
        )
    locations = Locations.from_environment()
    with (
        current_metrics(locations) as connection,
        _open_answer(connection, by=by, benchmark=benchmark, published_file=published_file, line=line) as answer,
    ):
        known = _evaluated_benchmarks(connection)
        if known and benchmark not in (None, *known):
            raise click.UsageError(
                f"--benchmark is {benchmark!r}, which has no results; expected one of "
                f"{name_choices(benchmark, known, listed_in='`tta-pipeline leaderboard`')}"
            )
        if not known:
            from tta_pipeline.results.database.database import EVALUATE_FIRST

            say(f"no results: {EVALUATE_FIRST}")
            if output.is_for_people:
                return
        before = output.place(notes_of(connection, locations, benchmark))
        if published_file:
            _write_agreement(answer, published_file, line, output, before)
        elif by and output.is_for_people:
            shown = choose_columns(output.read(answer), output.form, _CORRUPTION_COLUMNS)
            output.write_table(shown, before=before, after=_say_sd(shown))
        elif by:
            output.write(answer, ())
        elif not output.is_for_people:
            _write_for_programs(answer, connection, locations, output)
        else:
            _write_leaderboard(output.read(answer), connection, locations, output, before)


def _load_asked(locations: Locations, benchmark: str | None) -> "Sequence[Benchmark]":
    """Return the benchmarks in the file *benchmark*, or in all files."""
    from tta_pipeline.benchmarks.load_files import load_all_benchmarks

    return [each for each in load_all_benchmarks(locations).benchmarks.values() if benchmark in (None, each.file)]


def _evaluated_benchmarks(connection: Any) -> list[str]:
    sql = "SELECT DISTINCT benchmark FROM evaluations WHERE counts ORDER BY benchmark"
    return [name for (name,) in connection.execute(sql).fetchall()]


def _open_answer(
    connection: Any,
    *,
    by: str | None,
    benchmark: str | None,
    published_file: Path | None,
    line: str | None,
) -> "Answer":
    from tta_pipeline.report import queries
    from tta_pipeline.report.answers import Answer

    if published_file is not None:
        from tta_pipeline.report.published_figures import AGREEMENT, as_parameters, classes_of

        found = _read_lines(published_file, line)
        lists = as_parameters(found, _read_kept(found, benchmark))
        return Answer(connection, AGREEMENT, [*lists, classes_of(published_file), benchmark, line, line])
    if by:
        return Answer(connection, queries.BY_CORRUPTION, [benchmark])
    return Answer(connection, queries.ALL_LEADERBOARDS, [benchmark], kept_as="board")


def _read_lines(path: Path, line: str | None) -> "list[PublishedError]":
    """Return the published errors in *path*, which must have the requested *line*."""
    from tta_pipeline.report.published_figures import read_published

    found = read_published(path)
    names = dict.fromkeys(each.published_as for each in found)  # in the order of the file
    if line is not None and line not in names:
        raise click.UsageError(
            f"--reference-row is {line!r}; expected one of {name_choices(line, names, listed_in=str(path))}"
        )
    return found


def _read_kept(published: "Sequence[PublishedError]", benchmark: str | None) -> "Sequence[KeptError]":
    """Return the errors on the *published* cells by stored predictions, for experiments of *benchmark* or all."""
    from tta_pipeline.domain.cells import Cell
    from tta_pipeline.report.pages.leaderboard_intervals import kept_errors
    from tta_pipeline.util.progress import log_reporter

    locations = Locations.from_environment()
    cells = {Cell(corruption=each.corruption, severity=each.severity) for each in published}
    return kept_errors(_load_asked(locations, benchmark), locations, cells, log_reporter(say))


def _write_agreement(answer: "Answer", path: Path, line: str | None, output: Output, before: Sequence[str]) -> None:
    if not output.is_for_people:
        output.write(answer, None)
        return
    table = output.read(answer)
    if not any(table.column("experiment")):
        say(f"no experiment on the same classes has cells and the name of a row in {path}: name the row by "
            "--reference-row, or correct the names")  # fmt: skip
    columns = [each for each in _PUBLISHED_COLUMNS if line or each != "experiment"]  # else the name of the row
    output.write_table(choose_columns(table, output.form, columns), before=[*before, _AGREES])


def _write_for_programs(answer: "Answer", connection: Any, locations: Locations, output: Output) -> None:
    """Write the leaderboard with its intervals; the database gives each column its type, also without a row."""
    from tta_pipeline.report import queries
    from tta_pipeline.report.answers import Answer
    from tta_pipeline.report.intervals import add_intervals

    table, _ = answer.table(None)
    wider = add_intervals(table, _find_intervals(table, connection, locations, compares=False))
    ends = [wider.column("error_low"), wider.column("error_high")]
    with Answer(connection, queries.BOARD_WITH_INTERVALS, ends) as whole:
        output.write(whole, ())


def _write_leaderboard(
    table: "Table", connection: Any, locations: Locations, output: Output, before: Sequence[str]
) -> None:
    """Write the leaderboard for people, with intervals; LaTeX marks rows that may be as good as the best."""
    from tta_pipeline.report.intervals import add_intervals
    from tta_pipeline.report.tables import UNDER_LOAD_NOTE, has_marks, mark_rows

    is_latex = output.form.name == "latex"
    intervals = _find_intervals(table, connection, locations, compares=is_latex)
    judged = mark_rows(add_intervals(table, intervals))
    before = [*before, UNDER_LOAD_NOTE] if has_marks(judged) else before
    after = _say_other_orders(table, connection)
    if is_latex:
        _write_latex(judged, intervals, output, before, after)
    else:
        shown = choose_columns(judged, output.form, _LEADERBOARD_COLUMNS)
        output.write_table(shown, before=before, after=[*_say_sd(shown), *after])


def _say_sd(shown: "Table") -> Sequence[str]:
    from tta_pipeline.report.tables import SD_NOTE, has_sd

    return [SD_NOTE] if has_sd(shown) else []


def _say_other_orders(table: "Table", connection: Any) -> Sequence[str]:
    """Return a sentence that names the rows whose images came in other orders than in the best row of the same cells.

    The source model predicts the same in every order.
    """
    from tta_pipeline.report import queries
    from tta_pipeline.util.short_lists import abbreviate_list

    orders = {tuple(names): order for *names, order in connection.execute(queries.ORDERS).fetchall()}
    columns = ("benchmark", "dataset", "subset", "protocol", "num_cells", "experiment")
    best: dict[tuple[Any, ...], Any] = {}
    others = []
    for *of_row, protocol, num_cells, experiment in zip(*map(table.column, columns), strict=True):
        order = orders.get((*of_row, experiment))
        if order is not None and order != best.setdefault((*of_row, protocol, num_cells), order):
            others.append(experiment)
    said = "other seeds or orders of the images than in the best row of the same cells, so differences may come from "
    return [f"{abbreviate_list(others, most=5)}: {said}the order alone."] if others else []


def _write_latex(
    table: "Table", intervals: "Sequence[Intervals]", output: Output, before: Sequence[str], after: Sequence[str]
) -> None:
    from tta_pipeline.report.formats import as_latex
    from tta_pipeline.report.pages.leaderboard import find_leading
    from tta_pipeline.report.pages.leaderboard_intervals import NOTE, OTHER_SEEDS

    # In a paper, the caption gives what all rows have in common.
    numbers = set(table.column("num_cells"))
    columns = [name for name in _LEADERBOARD_COLUMNS if name != "num_cells" or len(numbers) != 1]
    over = f" Means over {_cells(numbers.pop())}." if len(numbers) == 1 else ""
    seeds = f" {OTHER_SEEDS}" if len(set(table.column("num_runs"))) > 1 else ""
    shown = choose_columns(table, output.form, columns)
    leading = find_leading(table, intervals)
    output.write_text(as_latex(shown, leading=leading, notes=[*before, NOTE + over + seeds, *_say_sd(shown), *after]))


def _cells(number: int | str) -> str:
    """Return *number*, which is `2 of 6` if results are missing, with its noun."""
    return count_of(number, "cell") if isinstance(number, int) else f"{number} cells"


def _find_intervals(table: "Table", connection: Any, locations: Locations, *, compares: bool) -> "Sequence[Intervals]":
    """Return the intervals of each row's benchmark in *table*: stored intervals, or computed ones."""
    from tta_pipeline.report.intervals import Intervals, Keep

    rows = list(zip(table.column("benchmark"), table.column("dataset"), strict=True))
    kept = {which: Keep.of(connection, locations, *which).read() for which in dict.fromkeys(rows)}
    found = {which: each for which, each in kept.items() if each and not (compares and each.p_values is None)}
    if missing := [which for which in kept if which not in found]:
        found |= _compute_intervals(table, connection, locations, missing, compares=compares)
    return [found.get(which) or Intervals() for which in rows]


def _compute_intervals(
    table: "Table",
    connection: Any,
    locations: Locations,
    missing: Sequence[tuple[str, str]],
    *,
    compares: bool,
) -> "Mapping[tuple[str, str], Intervals]":
    """Return the intervals of the benchmarks and datasets in *missing*; print which ones a faulty file leaves out."""
    from tta_pipeline.benchmarks.load_files import load_all_benchmarks
    from tta_pipeline.report.pages.leaderboard_intervals import compute_missing
    from tta_pipeline.util.progress import log_reporter

    loaded = load_all_benchmarks(locations)
    named = {benchmark for benchmark, _ in missing}
    say_left_out(
        f"intervals{f' of {fault.experiment}' if fault.experiment else ''}, since the benchmark file has a fault: "
        f"{fault.sentence}"
        for fault in loaded.faults
        if fault.path.stem in named and fault.experiment in (None, *table.column("experiment"))
    )
    return compute_missing(connection, locations, loaded, missing, log_reporter(say), compares=compares)
