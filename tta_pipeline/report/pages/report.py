"""The report of one benchmark: its first page, with its sections, figures and tables."""

import hashlib
import shutil
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import duckdb
from markupsafe import Markup
from matplotlib.figure import Figure

from tta_pipeline.benchmarks.benchmark import Benchmark
from tta_pipeline.benchmarks.protocol import Protocol
from tta_pipeline.domain.cells import Cell
from tta_pipeline.domain.locations import Locations
from tta_pipeline.errors import ManifestError, RecordError, ReportError, StreamError
from tta_pipeline.evaluation.experiment_results import ExperimentResults
from tta_pipeline.evaluation.published import added_experiments
from tta_pipeline.report import queries
from tta_pipeline.report.error_figures import (
    accuracy_against_clean,
    corruption_dots,
    error_against_cost,
    estimated_dots,
    heat_maps,
    open_set_dots,
    reliability,
)
from tta_pipeline.report.figure_style import add_notes, as_pdf, as_png, as_svg, lay_out
from tta_pipeline.report.formats import as_csv
from tta_pipeline.report.intervals import Keep, counted_rows
from tta_pipeline.report.pages.cell_pages import write_cells
from tta_pipeline.report.pages.collected_results import TILE, CollectedResults
from tta_pipeline.report.pages.comparison import (
    comparison_script,
    corruption_errors,
)
from tta_pipeline.report.pages.findings import Findings
from tta_pipeline.report.pages.headline import headline
from tta_pipeline.report.pages.leaderboard import leaderboard_html
from tta_pipeline.report.pages.leaderboard_intervals import to_intervals
from tta_pipeline.report.pages.photographs import save_sprite
from tta_pipeline.report.pages.rendering import STATIC, error_colours, render_page
from tta_pipeline.report.pictures import ShownSample, as_data_uri, first_samples
from tta_pipeline.report.progress_figures import progress_lines
from tta_pipeline.report.significance.pairwise import compare_pairs
from tta_pipeline.report.tables import (
    Table,
    as_html,
    as_html_list,
    as_markdown,
    drop_obvious_columns,
    format_value,
    mark_rows,
    query,
)
from tta_pipeline.report.time_figures import loader_comparison_bars, stage_bars, throughput_dots
from tta_pipeline.report.training_figures import learning_curves
from tta_pipeline.report.tuning_figures import criteria_gaps
from tta_pipeline.results.database.database import open_metrics
from tta_pipeline.shards.uneven_cells import find_uneven_cells
from tta_pipeline.util.files import published_folder
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
    """A section of the report: a query, and the table and chart of its result; hidden if both are missing."""

    name: str
    """Name of the section's files: `tables/<name>.csv`, and `figures/<name>` as SVG, PDF and PNG."""
    title: str
    text: str
    sql: str
    """Query whose parameters are the names of the benchmark and, unless `is_across_sets`, of the dataset."""
    has_table: bool = True
    """Whether the page shows the table; the CSV file is always written."""
    draw: Callable[[Findings, Table], Figure | None] | None = None
    is_origin: bool = False
    """Whether the section shows where the numbers come from; such sections are the last."""
    is_across_sets: bool = False
    """Whether the section is shown only for a benchmark with several datasets."""

    def sql_of(self, benchmark: Benchmark) -> str:
        """Return the query for *benchmark* with its parameters filled in, so that a reader can repeat it."""
        return fill_parameters(self.sql, benchmark.file, benchmark.dataset.name)


_ALL_CELLS_AND_SAMPLES: tuple[str, str, tuple[int, ...]] = (Protocol().name, "", ())

SECTIONS = (
    ReportSection(
        name="leaderboard",
        title="Leaderboard",
        text="Means over the evaluated cells, except shifts held out for tuning, and the cost of an image. The "
        "best among rows with the same protocol, number of cells and samples is bold.",
        sql=queries.LEADERBOARD,
    ),
    ReportSection(
        name="heat_map",
        title="Error by corruption and severity",
        text="Top-1 error in percent; all maps share one scale.",
        sql=queries.CELL_ERRORS,
        has_table=False,
        draw=lambda found, _: heat_maps(found.errors, found.corruptions, found.severities, found.means),
    ),
    ReportSection(
        name="datasets",
        title="Accuracy on each dataset against accuracy on clean images",
        text="Means over the shifts that count in the mean of each set; compare only rows of equally many cells. On "
        "the solid line, a shift costs no accuracy. The dashed line is fitted, on a logit scale, to the unadapted "
        "models, if there are at least three: a method above it has effective robustness (Taori et al. 2020, section "
        "2). Clean images may have more classes than a set.",
        sql=queries.DATASETS,
        draw=lambda _, table: accuracy_against_clean(table),
        is_across_sets=True,
    ),
    ReportSection(
        name="groups",
        title="Means over groups of datasets",
        text="Each set of a group weighs the same, and so does each cell of a set; held-out shifts are left out. The "
        "95 % interval is about other images of the same sets. Published means are for the same "
        "sets, weights and method. The best among rows with the same protocol, sets, number of cells and samples is "
        "bold.",
        sql=queries.GROUP_MEANS,
        is_across_sets=True,
    ),
    ReportSection(
        name="error_against_cost",
        title="Error against cost",
        text="Only experiments with the same protocol, cells and samples share a panel. The steps show the lowest "
        "error within each cost; no experiment beats those on a step, in blue, in both.",
        sql=queries.LEADERBOARD,
        has_table=False,
        draw=lambda _, table: error_against_cost(table),
    ),
    ReportSection(
        name="error_by_corruption",
        title="Error by corruption",
        text="Mean over the severities with its 95 % interval (bootstrap over images, and over orders where there are "
        "several seeds), for the first experiment of the benchmark file and the experiments with the lowest mean "
        "error. mCE is defined on ImageNet-C only, and is shown for experiments with all 75 cells of published images.",
        sql=queries.CORRUPTION_ERRORS,
        has_table=False,
        draw=lambda found, _: corruption_dots(found.errors, found.corruptions, found.mce, found.means, found.intervals),
    ),
    ReportSection(
        name="stream_progress",
        title="Accuracy along streams",
        text="A step for each segment of a stream, or for about every 1,000 images of a longer one; a panel for the "
        "streams of one protocol. A cross marks a collapse: from there to the end, for at least five steps, accuracy "
        "is below the unadapted model's on the same cells. "
        "A vertical tick marks a reset by the method itself, unless it reset itself at most steps.",
        sql=queries.STREAM_PROGRESS,
        has_table=False,
        draw=lambda _, table: progress_lines(table),
    ),
    ReportSection(
        name="calibration",
        title="Calibration",
        text="Accuracy of the predictions at each confidence, over all corrupted cells; the size of a point is its "
        "share of samples. Below the diagonal a model is overconfident. The mean gap is that of all these predictions "
        "together; the ECE of the leaderboard is the mean of the gaps of single cells, and mostly larger, since a cell "
        "above the diagonal does not make up for one below.",
        sql=queries.CALIBRATION,
        has_table=False,
        draw=lambda found, table: reliability(table, tuple(found.errors)),
    ),
    ReportSection(
        name="estimated_errors",
        title="Error estimated without labels",
        text="A point for each cell: 1 minus its mean confidence, over its true error; on the diagonal the estimate is "
        "right, and the number above a panel is the mean distance from there. If the source model was evaluated on "
        "clean images, the estimate is calibrated: its clean error plus its clean confidence minus 1 is added "
        "(difference of confidences, Guillory et al. 2021).",
        sql=queries.ESTIMATED_ERRORS,
        has_table=False,
        draw=lambda _, table: estimated_dots(table),
    ),
    ReportSection(
        name="open_set",
        title="Unknown images in the stream",
        text="Mean error on the known images, compared with the closed stream of the same images, order and settings, "
        "and how well the method's scores separate unknown images from known ones.",
        sql=queries.OPEN_SET,
        draw=lambda _, table: open_set_dots(table),
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
        text="Median over the cells of each run, for the experiments that ran at least twice under equal conditions: "
        "device, processor, cores, threads, batch size, precision, compile mode, kept features.",
        sql=queries.THROUGHPUT,
        has_table=False,
        draw=lambda _, table: throughput_dots(table),
    ),
    ReportSection(
        name="loaders",
        title="Loose files or shards?",
        text="Trainings that differ only in their loader, on the same machine. Whether the files were in the page "
        "cache is not known: the first loader to read them may have warmed it for the next.",
        sql=queries.LOADERS,
        draw=lambda _, table: loader_comparison_bars(table),
    ),
    ReportSection(
        name="tuning",
        title="Choice of hyperparameters",
        text="The newest choice for each tuned experiment, and the trials it was chosen from. Errors are means over "
        "the held-out shifts of the dataset, which are reported nowhere else.",
        sql=queries.TUNING_TRIALS,
    ),
    ReportSection(
        name="tuning_criteria",
        title="Criteria of choice against the oracle",
        text="What each criterion chooses, on held-out shifts or on the reported images without their labels, and how "
        "many more errors its choice makes on the reported cells than the best of the grid (protocol: Cygert et al. "
        "2024, arXiv 2407.14231). The oracle has seen the labels of these cells: no experiment can use its choice.",
        sql=queries.TUNING_CRITERIA,
        draw=lambda _, table: criteria_gaps(table),
    ),
    ReportSection(
        name="training",
        title="Training",
        text="The newest training of each model. Errors are from the epoch whose weights were kept.",
        sql=queries.TRAININGS,
    ),
    ReportSection(
        name="learning_curves",
        title="Learning curves",
        text="On augmented training images during each epoch, and on validation images after it.",
        sql=queries.LEARNING_CURVES,
        has_table=False,
        draw=lambda _, table: learning_curves(table),
    ),
    ReportSection(
        name="shards",
        title="Shards",
        text="Tar shards instead of loose files.",
        sql=queries.SHARD_SETS,
        is_origin=True,
    ),
    ReportSection(
        name="environment",
        title="Environment",
        text="Hardware and software behind these numbers.",
        sql=queries.ENVIRONMENT,
        is_origin=True,
    ),
)


def sections(benchmark: Benchmark) -> tuple[ReportSection, ...]:
    """Return the sections of the report of *benchmark*."""
    return tuple(section for section in SECTIONS if benchmark.is_one_of_several or not section.is_across_sets)


def fill_parameters(sql: str, *values: str | int) -> str:
    """Return *sql* with its parameters replaced by *values*, so that a reader can repeat it."""
    for value in values:
        sql = sql.replace("?", str(value) if isinstance(value, int) else f"'{value}'", 1)
    return sql.strip()


def write_report(
    locations: Locations, benchmark: Benchmark, *, reporter: Reporter, set_aside: Sequence[str] = ()
) -> Report:
    """Write the pages of *benchmark*, with `figures/` and `tables/`, atomically.

    Args:
        locations: Paths of the database, the results, the shards and the report.
        benchmark: The benchmark to report.
        reporter: Reporter of the finished cells.
        set_aside: Lines about files that the database leaves out, for the page.

    Raises:
        ReportError: nothing of the benchmark has been evaluated.
        RecordError: there is no database, or it cannot be read.
    """
    with open_metrics(locations.metrics) as connection:
        found = _read_findings(connection, benchmark)
        names = (benchmark.file, benchmark.dataset.name)
        keep, counted = Keep.of(connection, locations, *names), counted_rows(connection, *names)
    if not found.errors:
        raise ReportError(
            f"{locations.metrics} has no evaluation of {benchmark.name}; expected at least one evaluation: "
            f"materialize {benchmark.name}/evaluation/<experiment> first"
        )
    found = replace(found, uneven=tuple(find_uneven_cells(benchmark, locations).values()))
    folder = locations.report(benchmark.name)
    with published_folder(folder) as beside:
        for name in ("figures", "tables", "cells"):
            (beside / name).mkdir()
        shutil.copytree(STATIC, beside / "static")
        gathered = write_cells(locations, benchmark, beside / "cells", reporter)
        compared = compare_pairs(gathered.judged_cells())
        intervals = to_intervals(gathered, compared)
        if gathered.covers(counted) and not added_experiments(locations, benchmark.name):
            keep.write(intervals)  # for the verb `leaderboard`, which also reads the predictions of others
        (beside / "comparison.js").write_text(comparison_script(gathered, compared), encoding="utf-8")
        (beside / "compare.html").write_text(
            render_page("compare.html.j2", benchmark=benchmark, notes=found.notes), encoding="utf-8"
        )
        found = replace(found, intervals=corruption_errors(gathered))
        written = [
            _write_section(each, found, beside, folder) for each in sections(benchmark) if found.tables[each.name].rows
        ]
        shown = [section for section in written if section["html"] or section["formats"]]
        samples = _write_samples(found, locations, beside)
        page = render_page(
            "index.html.j2", benchmark=benchmark, notes=found.notes, headline=headline(found, compared),
            sections=shown, leaderboard=leaderboard_html(found.tables["leaderboard"], intervals),
            maps=_maps(found, gathered), scale=[error_colours(each / 10)[0] for each in range(11)], samples=samples,
            tile=TILE, severities=found.severities, has_several=len(found.tables["leaderboard"].rows) > 1,
            set_aside=set_aside, best=found.best, has_pairs=bool(compared), first=next(iter(found.errors)),
            has_seeds=max(found.tables["leaderboard"].column("num_runs")) > 1,
            has_severities=bool(benchmark.dataset.severities),
        )  # fmt: skip
        (beside / "index.html").write_text(page, encoding="utf-8")
    return Report(
        path=folder / "index.html",
        leaderboard_markdown=as_markdown(drop_obvious_columns(mark_rows(found.tables["leaderboard"]))),
        heat_map_uri=as_data_uri((folder / "figures" / "heat_map.png").read_bytes()),
        num_experiments=len(found.errors),
        num_cells=sum(len(by_cell) for by_cell in found.errors.values()),
    )


def _maps(found: Findings, gathered: CollectedResults) -> Sequence[Mapping[str, object]]:
    """Return the heat map of each experiment: a row for each corruption, with a field for each severity."""
    return [
        {
            "experiment": experiment,
            "mean": format_value("error", found.means[experiment] if found.in_mean(experiment) else None),
            "rows": [
                (
                    name,
                    [
                        _map_cell(Cell(corruption=name, severity=each), errors, gathered.pages(experiment))
                        for each in found.severities
                    ],
                )
                for name in found.corruptions
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
        "page": page if page in pages else None, "severity": cell.severity, "error": f"{100 * error:.1f}",
        "whole": error, "background": background, "ink": ink,
    }  # fmt: skip


def _read_findings(connection: duckdb.DuckDBPyConnection, benchmark: Benchmark) -> Findings:
    names = [benchmark.file, benchmark.dataset.name]
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

    These have one protocol, one subset and the same severities: the experiments reset at each cell with all samples and
    severities; if there are none, the largest such group.
    """
    groups: dict[tuple[str, str, tuple[int, ...]], list[str]] = {}
    for name, spec in benchmark.experiments.items():
        if name in evaluated:
            subset = spec.subset.name if spec.subset else ""
            groups.setdefault((spec.protocol.name, subset, tuple(spec.severities or ())), []).append(name)
    return tuple(groups.get(_ALL_CELLS_AND_SAMPLES) or max(groups.values(), key=len, default=()))


def _write_section(section: ReportSection, found: Findings, folder: Path, earlier: Path) -> Mapping[str, object]:
    """Write the table and chart of *section* to *folder*, and return the section's data for the page.

    A chart that is the same in the report *earlier* is copied from there.
    """
    table = found.tables[section.name]
    (folder / "tables" / f"{section.name}.csv").write_text(as_csv(table) + "\n", encoding="utf-8")
    figure = section.draw(found, table) if section.draw else None
    if figure:
        add_notes(figure, [f"{found.benchmark.name}: {note}" for note in found.notes])
        lay_out(figure)
        _write_figure(figure, folder / "figures" / section.name, earlier / "figures" / section.name)
    return {
        "name": section.name,
        "is_origin": section.is_origin,
        "title": section.title,
        "text": section.text,
        "html": _table_html(section, drop_obvious_columns(mark_rows(table))) if section.has_table else "",
        "formats": ("svg", "pdf", "png") if figure else (),
        "sql": section.sql_of(found.benchmark),
    }


def _write_figure(figure: Figure, stem: Path, earlier: Path) -> None:
    """Write *figure* in each format; PDF and PNG, which take most of the time, are those of an equal *earlier* one."""
    svg, others = as_svg(figure), []
    with suppress(OSError):
        found = [earlier.with_suffix(suffix).read_bytes() for suffix in (".pdf", ".png")]
        others = found if earlier.with_suffix(".svg").read_bytes() == _seal(svg, found) else []
    pdf, png = others or (as_pdf(figure), as_png(figure))
    for suffix, content in ((".svg", _seal(svg, [pdf, png])), (".pdf", pdf), (".png", png)):
        stem.with_suffix(suffix).write_bytes(content)


def _seal(svg: str, others: Sequence[bytes]) -> bytes:
    """Return *svg* with the sha256 of the same figure's *others*, PDF and PNG, which are copied only if it holds."""
    return f"{svg}<!-- sha256 of PDF and PNG: {hashlib.sha256(b''.join(others)).hexdigest()} -->\n".encode()


def _table_html(section: ReportSection, table: Table) -> Markup:
    if len(table.rows) == 1:
        return as_html_list(table)
    return as_html(table, name=f"{section.name}_table", caption=section.title)


@dataclass(frozen=True, kw_only=True, slots=True)
class FirstSamples:
    """The first samples of each corruption at the highest severity, with the best experiment's predictions."""

    experiment: str
    severity: int
    sql: str
    """Query for the cells, with its parameters filled in."""
    rows: Sequence[tuple[str, Sequence[ShownSample]]]
    """Corruption with its error, and its samples; the images are in `figures/samples.webp`."""
    why_none: str
    """Why there are no rows; empty if there are rows."""


def _write_samples(found: Findings, locations: Locations, folder: Path) -> FirstSamples:
    """Write the images of the first samples; cells whose samples cannot be read are left out."""
    best, severity = found.best, max(cell.severity for cell in found.errors[found.best])
    results = ExperimentResults(benchmark=found.benchmark, experiment_name=best, locations=locations)
    rows, problems = [], []
    if results.spec.protocol.partitioned_by != "cell":
        problems = [f"{best} is evaluated over streams of several cells, of which no samples are shown."]
    else:
        for cell in found.errors[best]:
            if cell.severity == severity:
                try:
                    rows.append(_samples_of(results, cell))
                except (ManifestError, RecordError, StreamError) as error:
                    problems.append(f"None can be shown. {error}")
    if rows:
        save_sprite([[each.image for each in samples] for _, samples in rows], folder / "figures" / "samples.webp")
    sql = fill_parameters(queries.SAMPLES, found.benchmark.file, found.benchmark.dataset.name, best, severity)
    return FirstSamples(
        experiment=best, severity=severity, sql=sql, rows=rows, why_none="" if rows else problems[0]
    )  # fmt: skip


def _samples_of(results: ExperimentResults, cell: Cell) -> tuple[str, Sequence[ShownSample]]:
    evaluation = results.rows(cell)[0]
    image_size = results.benchmark.image_size
    samples = first_samples(results.folder(cell), evaluation, image_size=image_size)
    return f"{cell.corruption}, error {format_value('error', evaluation.error)}", samples
