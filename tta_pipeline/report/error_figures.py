"""Charts of errors: each experiment's errors by cell, its cost, and its calibration."""

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter, NullLocator, PercentFormatter

from tta_pipeline.report.figure_style import COLOURS, HATCHES, hide_frame, pick_colours
from tta_pipeline.report.tables import Table
from tta_pipeline.util.partitions import Cell

_MAPS_IN_A_ROW = 5
_CURVES_IN_A_ROW = 5
_PANELS_IN_A_ROW = 2
_MAX_BARS = 6
_MIN_POINTS_TO_FIT = 3
"""Fewest models through which a line is fitted: two points always lie on a line."""


def heat_maps(
    errors: Mapping[str, Mapping[Cell, float]],
    corruptions: Sequence[str],
    severities: Sequence[int],
    means: Mapping[str, float],
) -> Figure:
    """Return a corruption x severity heat map of the error for each experiment, all on one scale, with its mean."""
    num_columns = min(len(errors), _MAPS_IN_A_ROW)
    num_rows = -(-len(errors) // num_columns)
    size = (2.2 + 2.1 * num_columns, num_rows * (1.4 + 0.3 * len(corruptions)))
    figure = Figure(figsize=size, layout="constrained")
    axes = _grid(figure, len(errors), num_columns, sharey=True)
    for axis, (experiment, by_cell) in zip(axes, errors.items(), strict=True):
        grid = np.array(
            [[by_cell.get(Cell(corruption=c, severity=s), np.nan) for s in severities] for c in corruptions]
        )
        image = axis.imshow(grid, cmap=COLOURS, vmin=0, vmax=1, aspect="auto")
        axis.set_title(experiment if np.isnan(means[experiment]) else f"{experiment}\nmean {means[experiment]:.1%}")
        axis.set_xticks(range(len(severities)), [str(severity) for severity in severities])
        axis.set_yticks(range(len(corruptions)), list(corruptions))
        axis.set_xlabel("severity")
        for (row, column), error in np.ndenumerate(grid):
            colour = "black" if error > 0.55 else "white"
            text = "" if np.isnan(error) else f"{100 * error:.0f}"
            axis.text(column, row, text, ha="center", va="center", fontsize=7, color=colour)
    figure.colorbar(
        image, ax=axes, label="top-1 error", format=lambda value, _: f"{value:.0%}",
        shrink=1 / num_rows, aspect=25, anchor=(0, 1),
    )  # fmt: skip
    return figure


def corruption_bars(
    errors: Mapping[str, Mapping[Cell, float]],
    corruptions: Sequence[str],
    mce: Mapping[str, float | None],
    means: Mapping[str, float],
) -> Figure:
    """Return bars of the mean error under each corruption, for the first experiment and those with the lowest means.

    The legend shows the mCE in percent, if known.
    """
    first, *others = errors
    best = sorted(others, key=means.__getitem__)
    shown = [first, *best[: _MAX_BARS - 1]]
    figure = Figure(figsize=(9, 3.8), layout="constrained")
    axis = figure.subplots()
    positions, width = np.arange(len(corruptions)), 0.8 / len(shown)
    for number, (experiment, colour) in enumerate(zip(shown, pick_colours(len(shown)), strict=True)):
        cells = errors[experiment].items()
        heights = [_mean([error for cell, error in cells if cell.corruption == c]) for c in corruptions]
        known = mce.get(experiment)
        axis.bar(
            positions + number * width, heights, width, color=colour, hatch=HATCHES[number % len(HATCHES)],
            label=experiment if known is None else f"{experiment} (mCE {known:.1f})", edgecolor="white",
        )  # fmt: skip
    axis.set_xticks(positions + 0.4 - width / 2, list(corruptions), rotation=40, ha="right")
    axis.set_ylabel("mean top-1 error")
    axis.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    axis.legend(frameon=False, ncols=3, loc="lower left", bbox_to_anchor=(0, 1))
    hide_frame(axis)
    return figure


def error_against_cost(leaderboard: Table) -> Figure:
    """Return mean error over milliseconds per image, with a panel for each group of comparable rows.

    A line joins the experiments on the Pareto front. Numbers are ranks; the legend has the names.
    """
    groups: dict[tuple[str, int], list[tuple[str, float, float]]] = {}
    columns = ("subset", "num_cells", "experiment", "ms_per_image", "mean_error")
    for subset, num_cells, *point in zip(*map(leaderboard.column, columns), strict=True):
        if point[-1] is not None:
            groups.setdefault((subset, num_cells), []).append((point[0], point[1], point[2]))
    num_columns = min(len(groups), _PANELS_IN_A_ROW)
    heights = [max(3.4, 0.8 + 0.15 * len(points)) for points in groups.values()]
    num_rows = -(-len(groups) // num_columns)
    row_heights = [max(heights[row * num_columns : (row + 1) * num_columns]) for row in range(num_rows)]
    figure = Figure(figsize=(6.2 * num_columns, sum(row_heights)), layout="constrained")
    axes = _grid(figure, len(groups), num_columns, height_ratios=row_heights)
    for axis, ((subset, num_cells), points) in zip(axes, groups.items(), strict=True):
        which = "" if subset == "all" else f", {subset}"
        axis.set_title(f"{num_cells} cells{which}", fontsize=10, loc="left")
        _cost_panel(axis, sorted(points, key=lambda point: point[2]))
    return figure


def accuracy_against_clean(means: Table) -> Figure | None:
    """Return accuracy on each shift set over accuracy on clean images, both on a logit scale; None without points.

    Effective robustness is a method's accuracy above the line fitted to unadapted models (Taori et al. 2020, "Measuring
    robustness to natural distribution shifts in image classification", section 2).
    """
    columns = ("shift_set", "experiment", "method", "clean_error", "mean_error")
    rows = [row for row in zip(*map(means.column, columns), strict=True) if None not in row]
    if not rows:
        return None
    sets = list(dict.fromkeys(row[0] for row in rows))
    num_columns = min(len(sets), _PANELS_IN_A_ROW)
    num_rows = -(-len(sets) // num_columns)
    figure = Figure(figsize=(5.4 * num_columns, 4.2 * num_rows), layout="constrained")
    for axis, name in zip(_grid(figure, len(sets), num_columns), sets, strict=True):
        axis.set_title(name, fontsize=10, loc="left")
        _accuracy_panel(axis, [row[1:] for row in rows if row[0] == name])
    return figure


def _accuracy_panel(axis: Axes, points: Sequence[tuple[str, str, float, float]]) -> None:
    """Draw points of (experiment, method, clean error, error on the set)."""
    dark, light = pick_colours(2)
    clean, shifted = (
        np.clip(1 - np.array(errors, float), 0.005, 0.995) for errors in list(zip(*points, strict=True))[2:]
    )
    is_source = np.array([point[1] == "source" for point in points])
    least, most = 0.7 * min(clean.min(), shifted.min()), 1 - 0.7 * (1 - max(clean.max(), shifted.max()))
    line = np.linspace(least, most, 100)
    axis.plot(line, line, color="0.7", linewidth=0.8, zorder=1)
    if len(set(clean[is_source])) >= _MIN_POINTS_TO_FIT:
        slope, intercept = np.polyfit(_logit(clean[is_source]), _logit(shifted[is_source]), 1)
        axis.plot(line, 1 / (1 + np.exp(-(slope * _logit(line) + intercept))), "--", color="0.4", linewidth=0.8)
    axis.scatter(
        clean, shifted, s=26, color=[dark if source else light for source in is_source], edgecolors=dark, zorder=2
    )
    for (experiment, *_), x, y in zip(points, clean, shifted, strict=True):
        axis.annotate(experiment, (x, y), textcoords="offset points", xytext=(5, -3), fontsize=7)
    axis.set_xscale("logit")
    axis.set_yscale("logit")
    for ticks in (axis.xaxis, axis.yaxis):
        ticks.set_major_formatter(lambda value, _: f"{value:.0%}")
        ticks.set_minor_formatter(NullFormatter())
    axis.set_xlabel("accuracy on clean images")
    axis.set_ylabel("accuracy on the shift set")
    hide_frame(axis)


def _logit(shares: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    return np.asarray(np.log(shares / (1 - shares)))


def reliability(calibration: Table, experiments: Sequence[str]) -> Figure:
    """Return reliability diagrams of *experiments*: accuracy at each confidence, over all their cells."""
    num_columns = min(len(experiments), _CURVES_IN_A_ROW)
    num_rows = -(-len(experiments) // num_columns)
    figure = Figure(figsize=(0.6 + 2.1 * num_columns, 2.4 * num_rows), layout="constrained")
    axes = _grid(figure, len(experiments), num_columns, sharex=True, sharey=True)
    columns = ("experiment", "confidence", "accuracy", "num_samples")
    rows = list(zip(*map(calibration.column, columns), strict=True))
    dark, light = pick_colours(2)
    for axis, experiment in zip(axes, experiments, strict=True):
        confidences, accuracies, counts = np.array([row[1:] for row in rows if row[0] == experiment], float).T
        axis.plot([0, 1], [0, 1], color="0.6", linewidth=0.8)
        axis.vlines(confidences, accuracies, confidences, color=light, linewidth=3)
        axis.scatter(confidences, accuracies, s=6 + 60 * counts / counts.sum(), color=dark, zorder=2)
        gap = (counts * np.abs(accuracies - confidences)).sum() / counts.sum()
        axis.set_title(f"{experiment}\ngap {gap:.1%}", fontsize=9)
        axis.set_aspect("equal")
        hide_frame(axis)
    figure.supxlabel("confidence", fontsize=9)
    figure.supylabel("accuracy", fontsize=9)
    return figure


def _cost_panel(axis: Axes, points: Sequence[tuple[str, float, float]]) -> None:
    """Draw points of (experiment, milliseconds, error), in ascending order of error."""
    front = [
        point for rank, point in enumerate(points) if all(point[1] < better[1] for better in points[:rank])
    ]  # fmt: skip
    axis.plot([point[1] for point in front], [point[2] for point in front], color="0.7", linewidth=1, zorder=1)
    dark, light = pick_colours(2)
    width = max(len(experiment) for experiment, _, _ in points)
    for rank, (experiment, milliseconds, error) in enumerate(points, start=1):
        is_best = (experiment, milliseconds, error) in front
        axis.scatter(
            [milliseconds], [error], s=26, color=[dark if is_best else light], edgecolors=[dark], zorder=2,
            label=f"{rank:2} {experiment:{width}} {error:6.1%} {milliseconds:5.3g} ms",
        )  # fmt: skip
        axis.annotate(str(rank), (milliseconds, error), xytext=(3, 3), textcoords="offset points", fontsize=7)
    axis.set_xscale("log")
    axis.xaxis.set_major_locator(LogLocator(subs=(1, 2, 3, 5)))
    axis.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axis.xaxis.set_minor_locator(NullLocator())
    axis.set_xlabel("ms per image")
    axis.set_ylabel("mean top-1 error")
    axis.yaxis.set_major_formatter(PercentFormatter(1))
    axis.legend(
        frameon=False, loc="upper left", bbox_to_anchor=(1, 1.02), handlelength=0.6, labelspacing=0.25,
        prop={"family": "monospace", "size": 7},
    )  # fmt: skip
    hide_frame(axis)


def _grid(figure: Figure, number: int, num_columns: int, **options: object) -> Sequence[Axes]:
    """Return *number* axes in rows of *num_columns*; the rest of the last row stays empty."""
    num_rows = -(-number // num_columns)
    axes = figure.subplots(num_rows, num_columns, squeeze=False, **options).ravel()  # type: ignore[call-overload]
    for axis in axes[number:]:
        axis.set_axis_off()
    return list(axes[:number])


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values)) if values else float("nan")
