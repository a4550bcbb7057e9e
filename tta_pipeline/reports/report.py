"""The report of one benchmark: one HTML file that loads nothing."""

import base64
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import duckdb
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from tta_pipeline.benchmarks.spec import Benchmark
from tta_pipeline.errors import ReportError
from tta_pipeline.files import write_atomically
from tta_pipeline.locations import Locations
from tta_pipeline.metrics.database import open_metrics
from tta_pipeline.partitions import Cell
from tta_pipeline.reports import queries
from tta_pipeline.reports.figures import as_png, as_svg, corruption_bars, heat_maps
from tta_pipeline.reports.tables import Table, as_html, as_markdown, query, without_obvious


@dataclass(frozen=True, kw_only=True, slots=True)
class Report:
    """A written report and what of it is shown elsewhere."""

    path: Path
    leaderboard_markdown: str
    heat_map_uri: str
    num_experiments: int
    num_cells: int


_SECTIONS = (
    (
        "Leaderboard",
        "Mean over the newest evaluation of each cell; the best of each column in bold.",
        queries.LEADERBOARD,
    ),
    (
        "Where the time goes",
        "Seconds over all cells. Data wait is time in which the device had nothing to do.",
        queries.WHERE_THE_TIME_GOES,
    ),
    ("Shards", "What replaced the loose files.", queries.SHARD_SETS),
    ("Environment", "What computed these numbers.", queries.ENVIRONMENT),
)


def write_report(locations: Locations, benchmark: Benchmark) -> Report:
    """Write `index.html` and the heat map of *benchmark* from the database.

    Raises:
        ReportError: nothing of the benchmark has been evaluated.
        RecordError: there is no database, or it cannot be read.
    """
    with open_metrics(locations.metrics) as connection:
        tables = {title: without_obvious(query(connection, sql, [benchmark.name])) for title, _, sql in _SECTIONS}
        errors = _cell_errors(connection, benchmark)
    if not errors:
        raise ReportError(
            f"{locations.metrics} has no evaluation of {benchmark.name}; expected one at least: materialize "
            f"{benchmark.name}/evaluation/<experiment> first"
        )
    heat_map = heat_maps(errors, benchmark.corruptions, benchmark.severities)
    png = as_png(heat_map)
    folder = locations.report(benchmark.name)
    page = (
        _environment()
        .get_template("report.html.j2")
        .render(
            benchmark=benchmark,
            leaderboard=tables["Leaderboard"].rows,
            tables=[_section(title, text, sql, tables[title]) for title, text, sql in _SECTIONS],
            heat_map=Markup(as_svg(heat_map)),  # noqa: S704 - made by matplotlib just now
            bars=Markup(as_svg(corruption_bars(errors, benchmark.corruptions))),  # noqa: S704 - likewise
            cell_sql=queries.CELL_ERRORS.strip(),
        )
    )
    write_atomically(folder / "heat_map.png", png)
    write_atomically(folder / "index.html", page.encode())
    return Report(
        path=folder / "index.html",
        leaderboard_markdown=as_markdown(tables["Leaderboard"]),
        heat_map_uri="data:image/png;base64," + base64.b64encode(png).decode(),
        num_experiments=len(errors),
        num_cells=sum(len(by_cell) for by_cell in errors.values()),
    )


def _cell_errors(connection: duckdb.DuckDBPyConnection, benchmark: Benchmark) -> Mapping[str, Mapping[Cell, float]]:
    """Return the errors by experiment, in the order of the benchmark file, and cell."""
    rows = query(connection, queries.CELL_ERRORS, [benchmark.name]).rows
    errors = {
        name: {
            Cell(corruption=corruption, severity=severity): error
            for e, corruption, severity, error in rows
            if e == name
        }
        for name in benchmark.experiments_by_cell
        if not (benchmark.experiments[name].subset or benchmark.experiments[name].severities)
    }
    return {name: by_cell for name, by_cell in errors.items() if by_cell}


def _section(title: str, text: str, sql: str, table: Table) -> Mapping[str, object]:
    return {"title": title, "text": text, "sql": sql.strip(), "html": as_html(table)}


def _environment() -> Environment:
    return Environment(loader=PackageLoader(__package__, ""), autoescape=True, undefined=StrictUndefined)
