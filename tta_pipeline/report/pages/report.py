"""The report of one benchmark: its first page, with its sections, figures and tables."""

import math
import shutil
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import duckdb
from matplotlib.figure import Figure
from PIL.Image import Image

from tta_pipeline.benchmarks.benchmark import Benchmark
from tta_pipeline.errors import ManifestError, RecordError, ReportError, StreamError
from tta_pipeline.evaluation.experiment_results import ExperimentResults
from tta_pipeline.report import queries
from tta_pipeline.report.error_figures import (
    accuracy_against_clean,
    corruption_bars,
    error_against_cost,
    heat_maps,
    reliability,
)
from tta_pipeline.report.figure_style import add_notes, as_png, as_svg
from tta_pipeline.report.formats import as_csv
from tta_pipeline.report.pages.cell_pages import write_cells
from tta_pipeline.report.pages.collected_results import CollectedResults
from tta_pipeline.report.pages.comparison import Pairs, comparison_script, mean_errors, verdict_on
from tta_pipeline.report.pages.leaderboard import leaderboard_html
from tta_pipeline.report.pages.rendering import STATIC, error_colours, render_page
from tta_pipeline.report.pictures import as_data_uri, encode_png, sample_row, sample_sheet
from tta_pipeline.report.progress_figures import progress_lines
from tta_pipeline.report.significance.pairwise import compare_pairs
from tta_pipeline.report.tables import (
    Table,
    as_html,
    as_markdown,
    drop_obvious_columns,
    format_value,
    query,
)
from tta_pipeline.report.time_figures import loader_comparison_bars, stage_bars, throughput_lines
from tta_pipeline.report.training_figures import learning_curves
from tta_pipeline.results.database.database import open_metrics
from tta_pipeline.results.reader_notes import reader_notes
from tta_pipeline.util.files import published_folder, read_file
from tta_pipeline.util.limits import MAX_FILE_BYTES
from tta_pipeline.util.locations import Locations
from tta_pipeline.util.partitions import Cell
from tta_pipeline.util.progress import Reporter


@dataclass(frozen=True, kw_only=True, slots=True)
class Report:
    """A written report, and the parts of it that are shown elsewhere."""

    path: Path
    leaderboard_markdown: str
    heat_map_uri: str
    num_experiments: int
    num_cells: int


@dataclass(frozen=True, kw_only=True, slots=True)
class ReportSection:
    """A section of the report: a query, and the table and chart of its answer."""

    name: str
    """Name of the section's files: `tables/<name>.csv`, `figures/<name>.svg`, `figures/<name>.png`."""
    title: str
    text: str
    sql: str
    """Query whose parameters are the names of the benchmark and, unless `is_across_sets`, of the shift set."""
    has_table: bool = True
    """Whether the page shows the table; the CSV file is always written."""
    draw: Callable[["Findings", Table], Figure | None] | None = None
    is_across_sets: bool = False
    """Whether the section is shown only for a benchmark with several shift sets."""
    needs_rows: bool = False
    """Whether the section is shown only if its query returns rows."""

    def sql_of(self, benchmark: Benchmark) -> str:
        """Return the query for *benchmark* with its parameters filled in, so that a reader can repeat it."""
        return fill_parameters(self.sql, benchmark.file, benchmark.shift_set.name)


@dataclass(frozen=True, kw_only=True, slots=True)
class Findings:
    """Results of a benchmark in the database."""

    benchmark: Benchmark
    tables: Mapping[str, Table]
    """Answers to the queries, by section."""
    errors: Mapping[str, Mapping[Cell, float]]
    """Errors by cell of the comparable experiments, see `_comparable_experiments`, in file order."""

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader must know beside each number."""
        board = self.tables["leaderboard"]
        rows = zip(board.column("experiment"), board.column("untrained"), strict=True)
        untrained = dict.fromkeys(experiment for experiment, is_untrained in rows if is_untrained)
        return reader_notes(generated=self.benchmark.is_generated, untrained=tuple(untrained))

    @property
    def best(self) -> str:
        """Name of the experiment with the lowest mean error, among those with the most cells."""
        return min(self.errors, key=lambda name: (-len(self.in_mean(name)), self.means[name]))

    @property
    def means(self) -> Mapping[str, float]:
        """Mean error by experiment over the shifts that count in the mean of their set; NaN if none does."""
        return {name: _mean(self.in_mean(name).values()) for name in self.errors}

    def in_mean(self, experiment: str) -> Mapping[Cell, float]:
        """Return the errors of *experiment* that count in its mean, without shifts held out for tuning."""
        counting = self.benchmark.shift_set.in_mean
        return {cell: error for cell, error in self.errors[experiment].items() if cell.corruption in counting}

    @property
    def mce(self) -> Mapping[str, float | None]:
        """Mean corruption error (mCE) in percent by experiment; None if not defined."""
        table = self.tables["error_by_corruption"]
        return dict(zip(table.column("experiment"), table.column("mce"), strict=True))


_ALL_CELLS_AND_SAMPLES: tuple[str, str, tuple[int, ...]] = ("cell", "", ())

SECTIONS = (
    ReportSection(
        name="leaderboard",
        title="Leaderboard",
        text="Means over the newest evaluation of each cell, without shifts held out for tuning, and the cost of an "
        "image. The best among rows with the same number of cells and the same samples is bold.",
        sql=queries.LEADERBOARD,
    ),
    ReportSection(
        name="heat_map",
        title="Error by corruption and severity",
        text="Top-1 error in percent; all maps share one scale.",
        sql=queries.CELL_ERRORS,
        has_table=False,
        draw=lambda found, _: heat_maps(
            found.errors, found.benchmark.corruptions, found.benchmark.severities, found.means
        ),
    ),
    ReportSection(
        name="shift_sets",
        title="Accuracy on each shift set against accuracy on clean images",
        text="Means over the shifts that count in the mean of each set; compare only rows of equal num_cells. On the "
        "solid line, a shift costs no accuracy. The dashed line is fitted, on a logit scale, to the unadapted models, "
        "if there are at least three: a method above it has effective robustness (Taori et al. 2020, section 2). Clean "
        "images may have more classes than a set.",
        sql=queries.SHIFT_SETS,
        draw=lambda _, table: accuracy_against_clean(table),
        is_across_sets=True,
    ),
    ReportSection(
        name="error_against_cost",
        title="Error against cost",
        text="Only experiments on the same cells and samples share a panel. The line joins the experiments that no "
        "other beats in both error and cost.",
        sql=queries.LEADERBOARD,
        has_table=False,
        draw=lambda _, table: error_against_cost(table),
    ),
    ReportSection(
        name="error_by_corruption",
        title="Error by corruption",
        text="Mean over the severities, for the first experiment of the benchmark file and the experiments with the "
        "lowest mean error. mCE is defined on ImageNet-C only, and is shown for experiments with all 75 cells of "
        "published images.",
        sql=queries.CORRUPTION_ERRORS,
        has_table=False,
        draw=lambda found, _: corruption_bars(found.errors, found.benchmark.corruptions, found.mce, found.means),
    ),
    ReportSection(
        name="stream_progress",
        title="Accuracy along long streams",
        text="For about every 1,000 images, in streams of 10,000 and more. A cross marks a collapse: from there to the "
        "end, for at least 5,000 images, accuracy is below the unadapted model's on the same cells. An upright tick "
        "marks a place where a method reset itself, unless it did so in most places.",
        sql=queries.STREAM_PROGRESS,
        has_table=False,
        draw=lambda _, table: progress_lines(table),
        needs_rows=True,
    ),
    ReportSection(
        name="calibration",
        title="Calibration",
        text="Accuracy of the predictions at each confidence, over all corrupted cells; the size of a point is its "
        "share of samples. Below the diagonal a model is overconfident.",
        sql=queries.CALIBRATION,
        has_table=False,
        draw=lambda found, table: reliability(table, tuple(found.errors)),
    ),
    ReportSection(
        name="time",
        title="Where the time goes",
        text="Over all cells. The device is idle while it waits for data; copies to the device overlap "
        "computation and are not part of the bars.",
        sql=queries.WHERE_THE_TIME_GOES,
        draw=lambda _, table: stage_bars(table),
    ),
    ReportSection(
        name="throughput",
        title="Throughput over runs",
        text="Median over the cells of each run, for the experiments that ran most often; a line needs two runs under "
        "equal conditions: device, processor, cores, threads, processes, batch size, precision, compile mode, loader.",
        sql=queries.THROUGHPUT,
        has_table=False,
        draw=lambda _, table: throughput_lines(table),
    ),
    ReportSection(
        name="loaders",
        title="Loose files or shards?",
        text="Experiments, and trainings, that differ only in their loader, over the cells that all of them evaluated "
        "under equal conditions. Whether the files were in the page cache is not known: the first loader to read them "
        "may have warmed it for the next.",
        sql=queries.LOADERS,
        draw=lambda _, table: loader_comparison_bars(table),
        needs_rows=True,
    ),
    ReportSection(
        name="tuning",
        title="Choice of hyperparameters",
        text="The newest choice for each tuned experiment, and the trials it was chosen from. Errors are means over "
        "the held-out shifts of the shift set, which are reported nowhere else.",
        sql=queries.TUNING_TRIALS,
        needs_rows=True,
    ),
    ReportSection(
        name="training",
        title="Training",
        text="The newest training of each model. Errors are from the epoch whose weights were kept.",
        sql=queries.TRAININGS,
        needs_rows=True,
    ),
    ReportSection(
        name="learning_curves",
        title="Learning curves",
        text="On augmented training images during each epoch, and on validation images after it.",
        sql=queries.LEARNING_CURVES,
        has_table=False,
        draw=lambda _, table: learning_curves(table),
        needs_rows=True,
    ),
    ReportSection(name="shards", title="Shards", text="Tar shards in place of loose files.", sql=queries.SHARD_SETS),
    ReportSection(
        name="environment",
        title="Environment",
        text="Hardware and software behind these numbers.",
        sql=queries.ENVIRONMENT,
    ),
)


def sections(benchmark: Benchmark) -> tuple[ReportSection, ...]:
    """Return the sections of the report of *benchmark*."""
    return tuple(section for section in SECTIONS if benchmark.is_one_of_several or not section.is_across_sets)


def fill_parameters(sql: str, *values: str | int) -> str:
    """Return *sql* with *values* in place of its parameters, so that a reader can repeat it."""
    for value in values:
        sql = sql.replace("?", str(value) if isinstance(value, int) else f"'{value}'", 1)
    return sql.strip()


def write_report(
    locations: Locations, benchmark: Benchmark, *, reporter: Reporter, set_aside: Sequence[str] = ()
) -> Report:
    """Write the pages of *benchmark*, with `figures/` and `tables/`, atomically.

    Args:
        locations: Paths of the database, the records, the shards and the report.
        benchmark: The benchmark to report.
        reporter: Reporter of the finished cells.
        set_aside: Lines about records that the database leaves out, for the page.

    Raises:
        ReportError: nothing of the benchmark has been evaluated.
        RecordError: there is no database, or it cannot be read.
    """
    with open_metrics(locations.metrics) as connection:
        found = _read_findings(connection, benchmark)
    if not found.errors:
        raise ReportError(
            f"{locations.metrics} has no evaluation of {benchmark.name}; expected at least one: materialize "
            f"{benchmark.name}/evaluation/<experiment> first"
        )
    folder = locations.report(benchmark.name)
    with published_folder(folder) as beside:
        for name in ("figures", "tables", "cells"):
            (beside / name).mkdir()
        shutil.copytree(STATIC, beside / "static")
        gathered = write_cells(locations, benchmark, beside / "cells", reporter)
        compared, means = compare_pairs(gathered.judged_cells()), mean_errors(gathered)
        (beside / "comparison.js").write_text(comparison_script(gathered, compared))
        (beside / "compare.html").write_text(render_page("compare.html.j2", benchmark=benchmark, notes=found.notes))
        wanted = [each for each in sections(benchmark) if found.tables[each.name].rows or not each.needs_rows]
        shown = [_write_section(section, found, beside) for section in wanted]
        why_no_samples = _write_samples(found, locations, beside)
        page = render_page(
            "index.html.j2", benchmark=benchmark, notes=found.notes, headline=_headline(found, compared),
            sections=shown, leaderboard=leaderboard_html(found.tables["leaderboard"], gathered, compared, means),
            maps=_maps(found, gathered), sample_cells=_sample_cells(found), why_no_samples=why_no_samples,
            set_aside=set_aside, best=found.best, has_pairs=bool(compared), first=next(iter(found.errors)),
            has_severities=bool(benchmark.shift_set.severities),
        )  # fmt: skip
        (beside / "index.html").write_text(page)
    return Report(
        path=folder / "index.html",
        leaderboard_markdown=as_markdown(drop_obvious_columns(found.tables["leaderboard"])),
        heat_map_uri=as_data_uri(read_file(folder / "figures" / "heat_map.png", limit_bytes=MAX_FILE_BYTES)),
        num_experiments=len(found.errors),
        num_cells=sum(len(by_cell) for by_cell in found.errors.values()),
    )


def _maps(found: Findings, gathered: CollectedResults) -> Sequence[Mapping[str, object]]:
    """Return the heat map of each experiment: a row for each corruption, with a field for each severity."""
    benchmark = found.benchmark
    return [
        {
            "experiment": experiment,
            "mean": format_value("error", found.means[experiment] if found.in_mean(experiment) else None),
            "rows": [
                (
                    name,
                    [
                        _map_cell(Cell(corruption=name, severity=each), errors, gathered.pages(experiment))
                        for each in benchmark.severities
                    ],
                )
                for name in benchmark.corruptions
            ],
        }
        for experiment, errors in found.errors.items()
    ]


def _map_cell(cell: Cell, errors: Mapping[Cell, float], pages: Collection[str]) -> Mapping[str, object] | None:
    error = errors.get(cell)
    if error is None:
        return None
    background, ink = error_colours(error)
    page = f"{cell.corruption}-{cell.severity}"
    return {
        "page": page if page in pages else None, "severity": cell.severity, "error": f"{100 * error:.0f}",
        "whole": error, "background": background, "ink": ink,
    }  # fmt: skip


def _read_findings(connection: duckdb.DuckDBPyConnection, benchmark: Benchmark) -> Findings:
    names = [benchmark.file, benchmark.shift_set.name]
    tables = {
        section.name: query(connection, section.sql, names[: section.sql.count("?")]) for section in sections(benchmark)
    }
    errors: dict[str, dict[Cell, float]] = {}
    for name, corruption, severity, error, _ in tables["heat_map"].rows:
        if name in benchmark.experiments:
            errors.setdefault(name, {})[Cell(corruption=corruption, severity=severity)] = error
    errors = {name: errors[name] for name in _comparable_experiments(benchmark, errors)}
    return Findings(benchmark=benchmark, tables=tables, errors=errors)


def _comparable_experiments(benchmark: Benchmark, evaluated: Collection[str]) -> tuple[str, ...]:
    """Return the *evaluated* experiments that headline and figures compare.

    These are the experiments reset at each cell with all samples and severities; if there are none, the largest group
    with one protocol, one subset and the same severities.
    """
    groups: dict[tuple[str, str, tuple[int, ...]], list[str]] = {}
    for name, spec in benchmark.experiments.items():
        if name in evaluated:
            by = "cell" if name in benchmark.experiments_by_cell else spec.protocol.name
            subset = spec.subset.name if spec.subset else ""
            groups.setdefault((by, subset, tuple(spec.severities or ())), []).append(name)
    return tuple(groups.get(_ALL_CELLS_AND_SAMPLES) or max(groups.values(), key=len, default=()))


def _headline(found: Findings, compared: Pairs) -> str:
    """Return the main result: the best experiment, whether it beats the next, and its hardest corruption."""
    errors = found.in_mean(found.best)
    if not errors:
        return f"None of {len(found.errors)} experiments has a shift in the mean: all shifts are held out for tuning."
    by_corruption = {
        corruption: _mean([error for cell, error in errors.items() if cell.corruption == corruption])
        for corruption in {cell.corruption for cell in errors}
    }
    hardest = max(by_corruption, key=by_corruption.__getitem__)
    spec = found.benchmark.experiments[found.best]
    samples = f", {spec.subset.name} samples of each," if spec.subset else ""
    return (
        f"{_verdict_on_best(found, compared)}"
        f"Of {len(found.errors)} experiments on {len(errors)} cells{samples} {found.best} has the lowest mean error, "
        f"{found.means[found.best]:.1%}; {hardest} hurts it most, {by_corruption[hardest]:.1%}."
    )


def _verdict_on_best(found: Findings, compared: Pairs) -> str:
    """Return the verdict on the best experiment and the next best on the same cells; empty if it cannot be given."""
    best, cells = found.best, found.in_mean(found.best).keys()
    others = [name for name in found.errors if name != best and found.in_mean(name).keys() == cells]
    if not others:
        return ""
    second = min(others, key=found.means.__getitem__)
    for names in ((best, second), (second, best)):
        if names in compared and compared[names].covers_both:
            return f"{verdict_on(names, compared[names])} "
    return ""


def _write_section(section: ReportSection, found: Findings, folder: Path) -> Mapping[str, object]:
    """Write the table and chart of *section* to *folder*, and return the section's data for the page."""
    table = found.tables[section.name]
    (folder / "tables" / f"{section.name}.csv").write_text(as_csv(table) + "\n")
    figure = section.draw(found, table) if section.draw else None
    if figure:
        add_notes(figure, [f"{found.benchmark.name}: {note}" for note in found.notes])
        (folder / "figures" / f"{section.name}.svg").write_text(as_svg(figure))
        (folder / "figures" / f"{section.name}.png").write_bytes(as_png(figure))
    return {
        "name": section.name,
        "title": section.title,
        "text": section.text,
        "html": as_html(drop_obvious_columns(table), name=f"{section.name}_table", caption=section.title)
        if section.has_table
        else "",
        "figure": figure is not None,
        "expects_figure": section.draw is not None,
        "sql": section.sql_of(found.benchmark),
    }


def _sample_cells(found: Findings) -> Mapping[str, object]:
    """Return the experiment and severity of the sheet of samples, and the query for its cells."""
    best, severity = found.best, max(cell.severity for cell in found.errors[found.best])
    sql = fill_parameters(queries.SAMPLES, found.benchmark.file, found.benchmark.shift_set.name, best, severity)
    return {"experiment": best, "severity": severity, "sql": sql}


def _write_samples(found: Findings, locations: Locations, folder: Path) -> str:
    """Write the first samples of each corruption at the highest severity, with the best experiment's predictions.

    Cells whose samples cannot be read are left out. Return why none was written; empty: some were.
    """
    best, severity = found.best, max(cell.severity for cell in found.errors[found.best])
    results = ExperimentResults(benchmark=found.benchmark, experiment_name=best, locations=locations)
    if results.spec.protocol.partitioned_by != "cell":
        return f"{best} is evaluated over streams of several cells, of which no samples are shown."
    rows, problems = {}, []
    for cell in found.errors[best]:
        if cell.severity == severity:
            try:
                name, row = _sample_row(results, cell)
            except (ManifestError, RecordError, StreamError) as error:
                problems.append(str(error))
            else:
                rows[name] = row
    if not rows:
        return f"None can be shown. {problems[0]}"
    (folder / "figures" / "samples.png").write_bytes(encode_png(sample_sheet(rows)))
    return ""


def _sample_row(results: ExperimentResults, cell: Cell) -> tuple[str, Image]:
    evaluation = results.rows(cell)[0]
    image_size = results.benchmark.image_size_of(results.experiment_name)
    row = sample_row(results.folder(cell), evaluation, image_size=image_size)
    return f"{cell.corruption}, error {format_value('error', evaluation.error)}", row


def _mean(values: Collection[float]) -> float:
    return sum(values) / len(values) if values else math.nan
