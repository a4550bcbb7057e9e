"""Compute the intervals of leaderboards that are not stored yet, from kept predictions."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress

import duckdb

from tta_pipeline.benchmarks.benchmark import Benchmark
from tta_pipeline.benchmarks.load_files import LoadedBenchmarks
from tta_pipeline.domain.cells import Cell
from tta_pipeline.domain.locations import Locations
from tta_pipeline.errors import RecordError
from tta_pipeline.evaluation.published import PublishedExperiment, added_experiments, read_added
from tta_pipeline.report.intervals import Interval, Intervals, Keep, counted_rows
from tta_pipeline.report.pages.cells import read_cells
from tta_pipeline.report.pages.collected_results import CollectedResults
from tta_pipeline.report.pages.comparison import Pairs, comparable_p_values, mean_errors
from tta_pipeline.report.published_figures import KeptError
from tta_pipeline.report.significance.pairwise import compare_pairs, estimate_error
from tta_pipeline.util.progress import Reporter

NOTE = (
    "dagger: the best of the rows with the same protocol and cells, and rows that are not significantly worse on the "
    "same stream (paired bootstrap, Holm, 5 %). In brackets: 95 % interval of the mean error over images, and over "
    "orders where a row has several seeds; none if no predictions are kept."
)
OTHER_SEEDS = "Rows with other seeds than the best row are not compared with that row, and never get a dagger."
"""Additional note if rows have different numbers of seeds."""


def compute_missing(
    connection: duckdb.DuckDBPyConnection,
    locations: Locations,
    loaded: LoadedBenchmarks,
    missing: Collection[tuple[str, str]],
    reporter: Reporter,
    *,
    compares: bool,
) -> Mapping[tuple[str, str], Intervals]:
    """Return the intervals of each benchmark and dataset in *missing* that *loaded* has, and keep them.

    Args:
        connection: The database.
        locations: Locations of the predictions.
        loaded: Benchmarks whose predictions may be read; of a faulty file, nothing is kept.
        missing: Names of benchmark files and datasets.
        reporter: Reporter of the cells that are read.
        compares: Whether to compare all pairs of experiments.
    """
    known = {(each.file, each.dataset.name): each for each in loaded.benchmarks.values()}
    faulty = {fault.path.stem for fault in loaded.faults}
    found = {}
    for benchmark, dataset in missing:
        if (benchmark, dataset) not in known:
            continue
        gathered = collect_results(known[benchmark, dataset], locations, reporter)
        pairs = compare_pairs(gathered.judged_cells()) if compares else None
        found[benchmark, dataset] = to_intervals(gathered, pairs)
        if benchmark not in faulty and gathered.covers(counted_rows(connection, benchmark, dataset)):
            Keep.of(connection, locations, benchmark, dataset).write(found[benchmark, dataset])
    return found


def to_intervals(gathered: CollectedResults, pairs: Pairs | None) -> Intervals:
    """Return the intervals of the results of a benchmark.

    Args:
        gathered: The results of all cells.
        pairs: Comparisons of all pairs of experiments; None: they were not compared.
    """
    means = {
        name: Interval(each.mean, each.low, each.high, gathered.subsets[name])
        for name, each in mean_errors(gathered).items()
    }
    return Intervals(means=means, p_values=None if pairs is None else comparable_p_values(pairs))


def kept_errors(
    benchmarks: Iterable[Benchmark], locations: Locations, cells: Collection[Cell], reporter: Reporter
) -> Sequence[KeptError]:
    """Return the mean error over *cells* of each experiment that kept the predictions, with its standard error."""
    found = []
    for benchmark in benchmarks:
        gathered = collect_results(benchmark, locations, reporter)
        keys = {cell.key for cell in cells}
        for name, by_unit in gathered.judged_cells().items():
            estimate = estimate_error(each for unit, each in by_unit.items() if unit.rpartition("\n")[2] in keys)
            if estimate:
                where = (benchmark.file, benchmark.dataset.name, name, gathered.subsets[name])
                found.append(KeptError(*where, estimate.mean, estimate.standard_error))
    return found


def collect_results(benchmark: Benchmark, locations: Locations, reporter: Reporter) -> CollectedResults:
    """Read the kept predictions of all cells of *benchmark*, also those that were added from others."""
    num_cells = len(benchmark.cells) + benchmark.has_clean
    gathered, progress = CollectedResults(), reporter("reading predictions", num_cells, unit="cells")
    for results in read_cells(benchmark, locations, _read_added(benchmark, locations)):
        gathered.add(results, ())
        progress.advance(1)
    return gathered


def _read_added(benchmark: Benchmark, locations: Locations) -> Sequence[PublishedExperiment]:
    """Return the added experiments of *benchmark*; the database names those whose files are damaged."""
    found = []
    for name in added_experiments(locations, benchmark.name):
        with suppress(RecordError):
            found.append(read_added(locations, benchmark.name, name))
    return found
