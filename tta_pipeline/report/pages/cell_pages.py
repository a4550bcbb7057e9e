"""The page of each cell: every experiment on it, the samples they disagree on, and the origin of each number."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from markupsafe import Markup

from tta_pipeline.benchmarks.benchmark import Benchmark
from tta_pipeline.domain.cells import CLEAN, WHOLE
from tta_pipeline.domain.locations import Locations
from tta_pipeline.report.pages.cells import CellResults, Entry, chart_data, class_errors, confusions, read_cells
from tta_pipeline.report.pages.collected_results import TILE, CollectedResults, Photograph
from tta_pipeline.report.pages.photographs import write_photographs
from tta_pipeline.report.pages.rendering import render_page
from tta_pipeline.report.tables import Table, as_html, as_html_list, drop_obvious_columns
from tta_pipeline.results.reader_notes import reader_notes
from tta_pipeline.util.progress import Reporter

_COLUMNS = (
    "protocol", "error", "top5_error", "nll", "ece", "images_per_s", "num_samples", "diverged", "subset",
)  # fmt: skip
_FACTS = (
    "model", "weights", "method", "hyperparameters_origin", "seed", "batch_size", "precision", "device",
    "num_forwards", "num_backwards", "num_updates", "num_resets", "wall_s", "data_wait_s", "compute_s",
)  # fmt: skip
_IDENTITY = (
    "predictions_sha256", "order_hash", "manifest_sha256", "weights_sha256", "fingerprint",
)  # fmt: skip


def write_cells(locations: Locations, benchmark: Benchmark, folder: Path, reporter: Reporter) -> CollectedResults:
    """Write the page of each cell with results into *folder*, and return the data for the other pages."""
    gathered, progress = (
        CollectedResults(),
        reporter("writing pages", len(benchmark.cells) + benchmark.has_clean, unit="cells"),
    )
    for results in read_cells(benchmark, locations):
        if not results.entries:
            continue
        photographs = write_photographs(results, folder / f"{results.name}.webp", image_size=benchmark.image_size)
        (folder / f"{results.name}.html").write_text(_render_cell(benchmark, results, photographs), encoding="utf-8")
        gathered.add(results, photographs)
        progress.advance(1)
    return gathered


def _render_cell(benchmark: Benchmark, results: CellResults, photographs: Sequence[Photograph]) -> str:
    drawn = {name: asdict(chart_data(entry.row)) for name, entry in results.first.items()}
    return render_page(
        "cell.html.j2",
        benchmark=benchmark,
        results=results,
        severities=results.severities,
        notes=reader_notes(
            generated=benchmark.is_generated and results.cell != CLEAN,
            untrained=[name for name, entry in results.first.items() if entry.row.is_untrained],
        ),
        table=_table(results),
        photographs=photographs,
        tile=TILE,
        class_errors=class_errors(results),
        sections=[_section(benchmark, results, entry) for entry in results.first.values()],
        facts=[
            _facts(results, "settings", "Settings and cost", _FACTS),
            _facts(results, "identity", "Identity", _IDENTITY),
        ],
        # Jinja does not escape inside <script>, and an experiment's name may contain "</script>".
        curves=Markup(json.dumps(drawn, separators=(",", ":")).replace("<", "\\u003c")),  # noqa: S704 - escaped here
    )


def _table(results: CellResults) -> Markup:
    protocols = [entry.row.setup.protocol for entry in results.entries]
    entries = sorted(results.entries, key=lambda entry: (protocols.index(entry.row.setup.protocol), entry.row.error))
    rows = tuple((entry.experiment, _stream(results, entry), *_values(entry, _COLUMNS)) for entry in entries)
    # The order says which error is lowest; the only other mark would be of a speed, measured on any machine.
    columns = ("experiment", "stream", *_COLUMNS)
    table = drop_obvious_columns(Table(columns=columns, rows=rows, best=frozenset()))
    caption = f"Experiments on {results.title}, from the lowest error on"
    return as_html(table, name="experiments", caption=caption, is_whole=False, grouped_by="protocol")


def _values(entry: Entry, columns: Sequence[str]) -> list[Any]:
    values = entry.row.by_column()
    return [values[name] for name in columns]


def _stream(results: CellResults, entry: Entry) -> str | None:
    """Return the stream and seed of *entry*; None if its stream is this cell alone with seed 0."""
    stream, seed, position, _ = entry.unit
    parts = [*([] if stream == results.cell.key else [f"stream {stream}, segment {position}"])]
    return ", ".join([*parts, *([f"seed {seed}"] if seed else [])]) or None


def _section(benchmark: Benchmark, results: CellResults, entry: Entry) -> Mapping[str, object]:
    return {
        "entry": entry,
        "num_entries": sum(each.experiment == entry.experiment for each in results.entries),
        "confusions": confusions(entry, results),
        "command": _launch_command(benchmark, entry),
    }


def _launch_command(benchmark: Benchmark, entry: Entry) -> str:
    """Return the command that evaluates *entry* again if it is not finished."""
    if entry.stream == CLEAN.key:
        return f"dg launch --assets '{benchmark.name}/clean/evaluation/{entry.experiment}'"
    partition = "" if entry.stream == WHOLE.key else f" --partition '{entry.stream}'"
    return f"dg launch --assets '{benchmark.name}/evaluation/{entry.experiment}'{partition}"


def _facts(results: CellResults, name: str, title: str, columns: Sequence[str]) -> Mapping[str, object]:
    """Return a section with the facts that all experiments on the cell share, and a table of those that differ."""
    rows = {experiment: _values(entry, columns) for experiment, entry in results.first.items()}
    first, *others = rows.values()
    is_same = [all(other[at] == value for other in others) for at, value in enumerate(first)]
    same = {
        each: value for each, value, is_it in zip(columns, first, is_same, strict=True) if is_it and value is not None
    }
    differing = [at for at, is_it in enumerate(is_same) if not is_it]
    table = Table(
        columns=("experiment", *(columns[at] for at in differing)),
        rows=tuple((experiment, *(row[at] for at in differing)) for experiment, row in rows.items()),
    )
    return {
        "name": name,
        "title": title,
        "same": as_html_list(Table(columns=tuple(same), rows=(tuple(same.values()),))) if same else "",
        "table": as_html(table, name=f"{name}_table", caption=title, is_whole=False) if differing else "",
    }
