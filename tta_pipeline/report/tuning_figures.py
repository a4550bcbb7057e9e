"""The chart of a tuning: the error of each trial over the values of the grid."""

from collections.abc import Callable

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator, PercentFormatter

from tta_pipeline.report.figure_style import COLOURS, ON_COLOUR, hide_frame, pick_colours
from tta_pipeline.results.tuning_record import Trial, TuningRun, Value

_CHOSEN = "#b2182b"
_LOGARITHMIC_FROM = 10.0
"""Ratio of the largest to the smallest value from which an axis is logarithmic."""


def error_over_grid(run: TuningRun) -> Figure:
    """Return the mean error of each trial over the grid, with the choice marked.

    One hyperparameter gives a curve of the mean, with a thin curve for each held-out shift. Two hyperparameters give a
    heat map if all combinations were tried. Otherwise each hyperparameter has a panel with a point for each trial.
    """
    varied = [name for name, values in run.grid_values.items() if len(values) > 1] or list(run.grid_values)
    if len(varied) == 1:
        figure = Figure(figsize=(7.5, 4), layout="constrained")
        _draw_curve(figure.subplots(), run, varied[0])
    elif len(varied) == 2 and run.num_trials == run.num_combinations:
        figure = _draw_map(run, *varied)
    else:
        figure = Figure(figsize=(1 + 3.2 * len(varied), 3.6), layout="constrained")
        panels = figure.subplots(1, len(varied), squeeze=False, sharey=True)[0]
        for axis, name in zip(panels, varied, strict=True):
            _draw_points(axis, run, name)
        panels[0].set_ylabel("mean top-1 error")
    chosen = ", ".join(f"{name} {value}" for name, value in run.values.items())
    figure.suptitle(f"{run.experiment} on {', '.join(run.shifts)}\nchosen: {chosen}, error {run.error:.1%}", fontsize=9)
    return figure


def _draw_curve(axis: Axes, run: TuningRun, name: str) -> None:
    """Draw the error over the values of one hyperparameter."""
    place = _prepare_axis(axis, run, name)
    trials = sorted(run.trials, key=lambda each: place(each.values[name]))
    at = [place(each.values[name]) for each in trials]
    for shift, colour in zip(run.shifts, pick_colours(len(run.shifts)), strict=True):
        means = [_mean_error(each, shift) for each in trials]
        axis.plot(at, means, color=colour, linewidth=1, linestyle="--", label=shift)
    axis.plot(at, [each.error for each in trials], color="black", linewidth=2, marker="o", label="mean")
    axis.plot(place(run.values[name]), run.error, color=_CHOSEN, marker="o", markersize=11, fillstyle="none",
              markeredgewidth=2, linestyle="none", label="chosen")  # fmt: skip
    axis.set_ylabel("top-1 error")
    axis.legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(1, 1))


def _draw_points(axis: Axes, run: TuningRun, name: str) -> None:
    """Draw a point for each trial over the values of one of several hyperparameters."""
    place = _prepare_axis(axis, run, name)
    axis.plot([place(each.values[name]) for each in run.trials], [each.error for each in run.trials],
              color=pick_colours(1)[0], marker="o", linestyle="none", alpha=0.6)  # fmt: skip
    axis.plot(place(run.values[name]), run.error, color=_CHOSEN, marker="o", markersize=11, fillstyle="none",
              markeredgewidth=2, linestyle="none")  # fmt: skip


def _draw_map(run: TuningRun, down: str, along: str) -> Figure:
    """Return a heat map of the error over two hyperparameters."""
    rows, columns = run.grid_values[down], run.grid_values[along]
    errors = {(each.values[down], each.values[along]): each.error for each in run.trials}
    grid = np.array([[errors[row, column] for column in columns] for row in rows])
    figure = Figure(figsize=(2.6 + 0.8 * len(columns), 1.8 + 0.5 * len(rows)), layout="constrained")
    axis = figure.subplots()
    image = axis.imshow(grid, cmap=COLOURS, aspect="auto")
    axis.set_xticks(range(len(columns)), [str(value) for value in columns])
    axis.set_yticks(range(len(rows)), [str(value) for value in rows])
    axis.set_xlabel(along)
    axis.set_ylabel(down)
    middle = (grid.min() + grid.max()) / 2
    for (row, column), error in np.ndenumerate(grid):
        is_chosen = (run.values[down], run.values[along]) == (rows[row], columns[column])
        axis.text(column, row, f"{100 * error:.1f}", ha="center", va="center", fontsize=8,
                  color=ON_COLOUR if error > middle else "white", fontweight="bold" if is_chosen else "normal",
                  bbox={"fill": False, "edgecolor": _CHOSEN, "linewidth": 2} if is_chosen else None)  # fmt: skip
    figure.colorbar(image, label="mean top-1 error", format=PercentFormatter(1))
    return figure


def _prepare_axis(axis: Axes, run: TuningRun, name: str) -> Callable[[Value], float]:
    """Prepare *axis* for the values of *name*, and return their coordinates: the number itself, or its grid index."""
    values = run.grid_values[name]
    axis.set_xlabel(name)
    axis.yaxis.set_major_formatter(PercentFormatter(1))
    hide_frame(axis)
    numbers = [float(each) for each in values if isinstance(each, int | float) and not isinstance(each, bool)]
    if len(numbers) < len(values):
        axis.set_xticks(range(len(values)), [str(each) for each in values])
        return lambda value: float(values.index(value))
    if min(numbers) > 0 and max(numbers) >= _LOGARITHMIC_FROM * min(numbers):
        axis.set_xscale("log")
        axis.xaxis.set_minor_locator(NullLocator())
    axis.set_xticks(numbers, [f"{each:g}" for each in numbers])
    return lambda value: float(str(value))


def _mean_error(trial: Trial, shift: str) -> float:
    """Return the mean error of *trial* over the cells of *shift*."""
    own = [error for cell, error in zip(trial.cells, trial.errors, strict=True) if cell.partition("|")[0] == shift]
    return sum(own) / len(own)
