"""Charts of errors: each experiment's errors by cell, its cost, and its calibration."""

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, LogLocator, MaxNLocator, NullLocator, PercentFormatter

from tta_pipeline.domain.cells import Cell
from tta_pipeline.report.figure_style import (
    COLOURS,
    MARKERS,
    ON_COLOUR,
    WIDTH_IN,
    hide_frame,
    label_points,
    pick_colours,
)
from tta_pipeline.report.significance.estimates import Estimate
from tta_pipeline.report.tables import Table
from tta_pipeline.util.plurals import count_of

_MAPS_IN_A_ROW = 5
_ERROR_COLOUR, _AUROC_COLOUR = pick_colours(2)
_CURVES_IN_A_ROW = 3
_MAX_DOTS = 6
_TOLERANCE = 1e-9
"""Largest difference between two sums of the same errors in different orders."""
_SHOWN_ACCURACIES = (0.01, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95, 0.98, 0.99)
_FEW_TICKS_FROM = 8
"""Ratio of the ends of a logarithmic axis from which powers of ten and a few between them are enough ticks."""
_MIN_POINTS_TO_FIT = 3
"""Minimum number of models for a fitted line: a line fits two points exactly."""


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
            colour = ON_COLOUR if error > 0.55 else "white"
            text = "" if np.isnan(error) else f"{100 * error:.1f}"
            axis.text(column, row, text, ha="center", va="center", fontsize=7, color=colour)
    figure.colorbar(
        image, ax=axes, label="top-1 error", format=lambda value, _: f"{value:.0%}",
        shrink=1 / num_rows, aspect=25, anchor=(0, 1),
    )  # fmt: skip
    return figure


def corruption_dots(
    errors: Mapping[str, Mapping[Cell, float]],
    corruptions: Sequence[str],
    mce: Mapping[str, float | None],
    means: Mapping[str, float],
    intervals: Mapping[str, Mapping[str, Estimate]],
) -> Figure:
    """Return the mean error under each corruption, for the first experiment and those with the lowest means.

    A bar through a dot is its interval, if known. The legend shows the mCE in percent, if known.
    """
    first, *others = errors
    shown = [first, *sorted(others, key=means.__getitem__)[: _MAX_DOTS - 1]]
    apart = 0.7 / len(shown)
    figure = Figure(figsize=(WIDTH_IN, 0.9 + 0.1 * len(shown) + 0.36 * len(corruptions)), layout="constrained")
    axis = figure.subplots()
    for number, (experiment, colour) in enumerate(zip(shown, pick_colours(len(shown)), strict=True)):
        places, dots = np.arange(len(corruptions)) + (number - (len(shown) - 1) / 2) * apart, list[float]()
        for place, corruption in zip(places, corruptions, strict=True):
            dot = _mean([error for cell, error in errors[experiment].items() if cell.corruption == corruption])
            dots.append(dot)
            interval = intervals.get(experiment, {}).get(corruption)
            # An interval around another mean covers fewer cells: not all kept predictions.
            if interval and abs(interval.mean - dot) < _TOLERANCE:
                axis.hlines(place, interval.low, interval.high, color=colour, linewidth=1.2)
        axis.plot(
            dots, places, color=colour, marker=MARKERS[number], markersize=5, linestyle="none",
            label=experiment if mce.get(experiment) is None else f"{experiment} (mCE {mce[experiment]:.1f})",
        )  # fmt: skip
    axis.set_yticks(range(len(corruptions)), list(corruptions))
    axis.set_ylim(len(corruptions) - 0.5, -0.5)
    for place in range(1, len(corruptions)):
        axis.axhline(place - 0.5, color="0.5", alpha=0.3, linewidth=0.6)
    axis.set_xlim(left=0)
    axis.set_xlabel("mean top-1 error")
    axis.xaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    axis.legend(frameon=False, ncols=2, loc="lower left", bbox_to_anchor=(0, 1), fontsize=9, handletextpad=0.3)
    hide_frame(axis)
    return figure


def error_against_cost(leaderboard: Table) -> Figure | None:
    """Return mean error over milliseconds per image, with a panel for each group of comparable rows; None without any.

    Points are labelled with names; steps show the lowest error within each cost.
    """
    groups: dict[tuple[str, str, int], list[tuple[str, float, float]]] = {}
    columns = ("protocol", "subset", "num_cells", "experiment", "ms_per_image", "mean_error")
    for protocol, subset, num_cells, *point in zip(*map(leaderboard.column, columns), strict=True):
        if point[-1] is not None:
            groups.setdefault((protocol, subset, num_cells), []).append((point[0], point[1], point[2]))
    groups = {which: points for which, points in groups.items() if len(points) > 1}
    if not groups:
        return None
    heights = [3.2 + 0.1 * len(points) for points in groups.values()]
    figure = Figure(figsize=(WIDTH_IN, sum(heights)), layout="constrained")
    axes = _grid(figure, len(groups), 1, height_ratios=heights)
    has_several = len(set(leaderboard.column("protocol"))) > 1
    for axis, ((protocol, subset, num_cells), points) in zip(axes, groups.items(), strict=True):
        parts = [protocol] * has_several + [count_of(num_cells, "cell")] + [subset] * (subset != "all")
        axis.set_title(", ".join(parts), fontsize=10, loc="left")
        _prepare_cost_panel(axis, sorted(points, key=lambda point: point[2]))
    for axis, points in zip(axes, groups.values(), strict=True):  # when no panel moves any more
        label_points(axis, sorted(points, key=lambda point: point[2]))
    return figure


def accuracy_against_clean(means: Table) -> Figure | None:
    """Return accuracy on each dataset over accuracy on clean images, both on a logit scale; None without points.

    Effective robustness is a method's accuracy above the line fitted to unadapted models (Taori et al. 2020, "Measuring
    robustness to natural distribution shifts in image classification", section 2).
    """
    columns = ("dataset", "experiment", "method", "clean_error", "mean_error")
    rows = [row for row in zip(*map(means.column, columns), strict=True) if None not in row]
    if not rows:
        return None
    sets = {name: [row[1:] for row in rows if row[0] == name] for name in dict.fromkeys(row[0] for row in rows)}
    figure = Figure(figsize=(WIDTH_IN, 4.4 * len(sets)), layout="constrained")
    labels = []
    for axis, (name, points) in zip(_grid(figure, len(sets), 1), sets.items(), strict=True):
        axis.set_title(name, fontsize=10, loc="left")
        labels.append((axis, _prepare_accuracy_panel(axis, points)))
    for axis, named in labels:  # when no panel moves any more
        label_points(axis, named)
    return figure


def _prepare_accuracy_panel(
    axis: Axes, points: Sequence[tuple[str, str, float, float]]
) -> Sequence[tuple[str, float, float]]:
    """Draw points of (experiment, method, clean error, error on the set), and return what to label, and where."""
    adapted, unadapted = pick_colours(2)
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
    axis.scatter(clean, shifted, s=26, color=[unadapted if source else adapted for source in is_source], zorder=2)
    axis.set_xscale("logit")
    axis.set_yscale("logit")
    for ticks in (axis.xaxis, axis.yaxis):
        ticks.set_major_formatter(lambda value, _: f"{value:.0%}")
        ticks.set_major_locator(FixedLocator(_SHOWN_ACCURACIES))
        ticks.set_minor_locator(NullLocator())
    axis.set_xlabel("accuracy on clean images")
    axis.set_ylabel("accuracy on the dataset")
    hide_frame(axis)
    return [(point[0], x, y) for point, x, y in zip(points, clean.tolist(), shifted.tolist(), strict=True)]


def _logit(shares: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    return np.asarray(np.log(shares / (1 - shares)))


def estimated_dots(table: Table) -> Figure | None:
    """Return a panel for each experiment: the errors of its cells as estimated without labels over the true ones.

    None without any.
    """
    columns = ("experiment", "error", "estimated_error")
    points: dict[str, list[tuple[float, float]]] = {}
    for name, true_error, estimate in zip(*map(table.column, columns), strict=True):
        points.setdefault(name, []).append((true_error, estimate))
    if not points:
        return None
    num_rows = -(-len(points) // _CURVES_IN_A_ROW)
    figure = Figure(figsize=(WIDTH_IN, 0.2 + 2.1 * num_rows), layout="constrained")
    axes = _grid(figure, len(points), _CURVES_IN_A_ROW, sharex=True, sharey=True)
    for axis, (name, of_cells) in zip(axes, points.items(), strict=True):
        true, estimated = zip(*of_cells, strict=True)
        gap = 100 * _mean([abs(one - other) for one, other in of_cells])
        axis.plot([0, 1], [0, 1], color="0.6", linewidth=0.8)
        axis.plot(true, estimated, "o", color=pick_colours(1)[0], markersize=3, alpha=0.7)
        axis.set_title(f"{name}\n{gap:.1f} points off", fontsize=9)
        axis.set_aspect("equal")
        axis.set(xlabel="true error", ylabel="estimated error")
        axis.label_outer()
        for each in (axis.xaxis, axis.yaxis):
            each.set_major_locator(FixedLocator((0, 0.5, 1)))
            each.set_major_formatter(PercentFormatter(1, decimals=0))
        hide_frame(axis)
    return figure


def open_set_dots(table: Table) -> Figure | None:
    """Return each experiment's error in the closed and the open stream, and its AUROC; None without any."""
    columns = ("experiment", "closed_error", "error", "auroc")
    rows = list(zip(*map(table.column, columns), strict=True))
    if not rows:
        return None
    figure = Figure(figsize=(WIDTH_IN, 1.0 + 0.3 * len(rows)), layout="constrained")
    errors, separation = figure.subplots(1, 2, sharey=True, width_ratios=(3, 2))
    for place, (_, closed, error, auroc) in enumerate(rows):
        if closed is not None:
            errors.annotate("", (error, place), (closed, place), arrowprops={"arrowstyle": "->", "color": "0.5"})
            errors.plot(closed, place, "o", markerfacecolor="none", color=_ERROR_COLOUR)
        errors.plot(error, place, "o", color=_ERROR_COLOUR)
        separation.plot(auroc, place, "s", color=_AUROC_COLOUR)
    errors.set_yticks(range(len(rows)), [name for name, *_ in rows])
    errors.set_ylim(len(rows) - 0.5, -0.5)
    errors.set_xlabel("error on known images; ring: closed")
    errors.xaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    separation.axvline(0.5, color="0.5", linewidth=0.6)
    separation.set_xlabel("AUROC")
    for axis in (errors, separation):
        hide_frame(axis)
    return figure


def reliability(calibration: Table, experiments: Sequence[str]) -> Figure:
    """Return reliability diagrams of *experiments*: accuracy at each confidence, over all their cells."""
    num_rows = -(-len(experiments) // _CURVES_IN_A_ROW)
    figure = Figure(figsize=(WIDTH_IN, 0.2 + 2.4 * num_rows), layout="constrained")
    axes = _grid(figure, len(experiments), _CURVES_IN_A_ROW, sharex=True, sharey=True)
    columns = ("experiment", "confidence", "accuracy", "num_samples")
    rows = list(zip(*map(calibration.column, columns), strict=True))
    dots, gaps = pick_colours(2)
    for axis, experiment in zip(axes, experiments, strict=True):
        confidences, accuracies, counts = np.array([row[1:] for row in rows if row[0] == experiment], float).T
        axis.plot([0, 1], [0, 1], color="0.6", linewidth=0.8)
        axis.vlines(confidences, accuracies, confidences, color=gaps, linewidth=2)
        axis.scatter(confidences, accuracies, s=6 + 60 * counts / counts.sum(), color=dots, zorder=2)
        gap = (counts * np.abs(accuracies - confidences)).sum() / counts.sum()
        axis.set_title(f"{experiment}\nmean gap {gap:.1%}", fontsize=9)
        axis.set_aspect("equal")
        axis.set(xlabel="confidence", ylabel="accuracy")
        axis.label_outer()
        hide_frame(axis)
    return figure


def _prepare_cost_panel(axis: Axes, points: Sequence[tuple[str, float, float]]) -> None:
    """Draw points of (experiment, milliseconds, error), in ascending order of error."""
    front = [
        point for rank, point in enumerate(points) if all(point[1] < better[1] for better in points[:rank])
    ][::-1]  # fmt: skip
    axis.step([point[1] for point in front], [point[2] for point in front], where="post", color="0.6", linewidth=0.8)
    best, others = pick_colours(2)
    colours = [best if point in front else others for point in points]
    axis.scatter([point[1] for point in points], [point[2] for point in points], s=30, color=colours, zorder=2)
    axis.margins(x=0.2, y=0.12)
    axis.set_xscale("log")
    least, most = axis.get_xlim()
    axis.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)) if most > _FEW_TICKS_FROM * least else MaxNLocator(6))
    axis.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axis.xaxis.set_minor_locator(NullLocator())
    axis.set_xlabel("ms per image")
    axis.set_ylabel("mean top-1 error")
    axis.yaxis.set_major_formatter(PercentFormatter(1))
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
