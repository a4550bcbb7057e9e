"""Leaderboards of several benchmarks with confidence intervals and significance, for a table in a paper."""

from collections.abc import Collection, Iterable, Sequence

from tta_pipeline.benchmarks.benchmark import Benchmark
from tta_pipeline.domain.cells import Cell
from tta_pipeline.domain.locations import Locations
from tta_pipeline.report.pages.cells import read_cells
from tta_pipeline.report.pages.collected_results import CollectedResults
from tta_pipeline.report.pages.comparison import mean_errors
from tta_pipeline.report.pages.leaderboard import add_intervals
from tta_pipeline.report.published_figures import KeptError
from tta_pipeline.report.significance.pairwise import compare_pairs, estimate_error
from tta_pipeline.report.tables import Table
from tta_pipeline.util.progress import Reporter

NOTE = (
    "dagger: the best of the rows with the same cells, and rows that are not significantly worse on the same stream "
    "(paired bootstrap over images, Holm, 5 %). In brackets: 95 % interval of the mean error over images, given this "
    "one stream; none if no predictions are kept."
)
OTHER_SEEDS = "A row over other seeds than the best row is not compared with it, and has no dagger."
"""What a reader must know besides where the rows have different numbers of seeds."""


def add_intervals_to_all(
    table: Table,
    benchmarks: Iterable[Benchmark],
    locations: Locations,
    reporter: Reporter,
    *,
    finds_leading: bool,
) -> tuple[Table, frozenset[int]]:
    """Return the leaderboards in *table* with the interval of each mean error, and the rows that may be the best.

    Args:
        table: Rows grouped by benchmark, with columns `benchmark` and `shift_set`.
        benchmarks: Benchmarks whose predictions may be read.
        locations: Locations of the predictions.
        reporter: Reporter of the cells that are read.
        finds_leading: Whether to compare all pairs of experiments; without it, no row is found that may be the best.
    """
    known = {(each.file, each.shift_set.name): each for each in benchmarks}
    groups: dict[tuple[str, str], list[int]] = {}
    for number, which in enumerate(zip(table.column("benchmark"), table.column("shift_set"), strict=True)):
        groups.setdefault(which, []).append(number)
    columns, rows, leading = table.columns, dict[int, tuple[object, ...]](), set[int]()
    for which, numbers in groups.items():
        gathered = _collect_results(known[which], locations, reporter) if which in known else CollectedResults()
        part = Table(columns=table.columns, rows=tuple(table.rows[number] for number in numbers))
        pairs = compare_pairs(gathered.judged_cells()) if finds_leading else {}
        wider, best = add_intervals(part, gathered, pairs, mean_errors(gathered))
        columns = wider.columns
        rows |= dict(zip(numbers, wider.rows, strict=True))
        leading |= {numbers[number] for number in best}
    return Table(columns=columns, rows=tuple(rows[number] for number in sorted(rows))), frozenset(leading)


def kept_errors(
    benchmarks: Iterable[Benchmark], locations: Locations, cells: Collection[Cell], reporter: Reporter
) -> Sequence[KeptError]:
    """Return the mean error over *cells* of each experiment that kept the predictions, with its standard error."""
    found = []
    for benchmark in benchmarks:
        gathered = _collect_results(benchmark, locations, reporter)
        keys = {cell.key for cell in cells}
        for name, by_unit in gathered.judged_cells().items():
            estimate = estimate_error(each for unit, each in by_unit.items() if unit.rpartition("\n")[2] in keys)
            if estimate:
                where = (benchmark.file, benchmark.shift_set.name, name, gathered.subsets[name])
                found.append(KeptError(*where, estimate.mean, estimate.standard_error))
    return found


def _collect_results(benchmark: Benchmark, locations: Locations, reporter: Reporter) -> CollectedResults:
    num_cells = len(benchmark.cells) + benchmark.has_clean
    gathered, progress = CollectedResults(), reporter("reading predictions", num_cells, unit="cells")
    for results in read_cells(benchmark, locations):
        gathered.add(results, ())
        progress.advance(1)
    return gathered
