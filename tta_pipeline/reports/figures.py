"""The report's charts."""

import base64
import io
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure

from tta_pipeline.partitions import Cell

_MAPS_IN_A_ROW = 5
_MAX_BARS = 6
_COLOURS = "cividis"  # even in lightness: readable in print and by colour-blind people


def heat_maps(
    errors: Mapping[str, Mapping[Cell, float]], corruptions: Sequence[str], severities: Sequence[int]
) -> Figure:
    """Return a heat map corruption x severity of the error of each experiment, all on one scale."""
    num_columns = min(len(errors), _MAPS_IN_A_ROW)
    num_rows = -(-len(errors) // num_columns)
    size = (2.2 + 2.1 * num_columns, num_rows * (1.4 + 0.3 * len(corruptions)))
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots(num_rows, num_columns, sharey=True, squeeze=False).ravel()
    for axis in axes[len(errors) :]:
        axis.set_axis_off()
    for axis, (experiment, by_cell) in zip(axes, errors.items(), strict=False):
        grid = np.array(
            [[by_cell.get(Cell(corruption=c, severity=s), np.nan) for s in severities] for c in corruptions]
        )
        image = axis.imshow(grid, cmap=_COLOURS, vmin=0, vmax=1, aspect="auto")
        axis.set_title(f"{experiment}\nmean {np.nanmean(grid):.1%}")
        axis.set_xticks(range(len(severities)), [str(severity) for severity in severities])
        axis.set_yticks(range(len(corruptions)), list(corruptions))
        axis.set_xlabel("severity")
        for (row, column), error in np.ndenumerate(grid):
            colour = "black" if error > 0.55 else "white"
            axis.text(column, row, f"{error:.0%}".rstrip("%"), ha="center", va="center", fontsize=7, color=colour)
    figure.colorbar(image, ax=axes, label="top-1 error", format=lambda value, _: f"{value:.0%}")
    return figure


def corruption_bars(errors: Mapping[str, Mapping[Cell, float]], corruptions: Sequence[str]) -> Figure:
    """Return bars of the mean error under each corruption, of the experiments with the least mean error."""
    best = sorted(errors, key=lambda experiment: _mean(list(errors[experiment].values())))[:_MAX_BARS]
    errors = {experiment: by_cell for experiment, by_cell in errors.items() if experiment in best}
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    axis = figure.subplots()
    positions, width = np.arange(len(corruptions)), 0.8 / len(errors)
    colours = mpl.colormaps[_COLOURS](np.linspace(0.05, 0.95, len(errors)))
    hatches = ["", "///", "...", "xxx", "\\\\\\", "ooo"]
    for number, (experiment, by_cell) in enumerate(errors.items()):
        means = [_mean([error for cell, error in by_cell.items() if cell.corruption == c]) for c in corruptions]
        axis.bar(
            positions + number * width, means, width, label=experiment, color=colours[number],
            hatch=hatches[number % len(hatches)], edgecolor="white",
        )  # fmt: skip
    axis.set_xticks(positions + 0.4 - width / 2, list(corruptions), rotation=40, ha="right")
    axis.set_ylabel("mean top-1 error")
    axis.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    axis.legend(frameon=False)
    axis.spines[["top", "right"]].set_visible(False)
    return figure


def loader_bars(rows: Sequence[Mapping[str, Any]]) -> Figure:
    """Return a bar for the speed of each loader, with the range of its repeats."""
    figure = Figure(figsize=(7, 1 + 0.4 * len(rows)), layout="constrained")
    axis = figure.subplots()
    speeds = np.array([row["images_per_s"] for row in rows])
    ranges = [[row[f"images_per_s_{end}"] for row in rows] for end in ("min", "max")]
    names = [f"{row['loader']}, {row['num_threads']} threads, {row['output']}" for row in rows]
    bars = axis.barh(names, speeds, xerr=np.abs(np.array(ranges) - speeds), color=mpl.colormaps[_COLOURS](0.4))
    axis.bar_label(bars, [f"{speed:,.0f}" for speed in speeds], padding=4)
    axis.set_xlim(0, 1.15 * max(ranges[1]))
    axis.invert_yaxis()
    axis.set_xlabel("images/s, median and range")
    axis.spines[["top", "right"]].set_visible(False)
    return figure


def as_png(figure: Figure, *, dots_per_inch: int = 120) -> bytes:
    """Return *figure* as PNG bytes."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=dots_per_inch)
    return buffer.getvalue()


def as_data_uri(figure: Figure) -> str:
    """Return *figure* as a PNG image that stands in Markdown."""
    return "data:image/png;base64," + base64.b64encode(as_png(figure)).decode()


def as_svg(figure: Figure) -> str:
    """Return *figure* as an SVG element to stand in HTML."""
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None})
    text = buffer.getvalue()
    return text[text.index("<svg") :]


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values)) if values else float("nan")
