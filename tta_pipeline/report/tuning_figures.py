"""The charts of a tuning: the error of each trial over the grid, and the gap of each criterion to the oracle."""

from collections.abc import Callable, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullLocator, PercentFormatter

from tta_pipeline.report.figure_style import COLOURS, MARKERS, ON_COLOUR, WIDTH_IN, hide_frame, pick_colours
from tta_pipeline.report.tables import Table
from tta_pipeline.results.tuning_criteria import ORACLE
from tta_pipeline.results.tuning_record import TuningRun
from tta_pipeline.results.tuning_trial import Trial, Value

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


def criteria_gaps(table: Table) -> Figure | None:
    """Return the gap of each criterion's choice to the oracle's in points, by experiment; None if none was compared.

    *table* has the columns `experiment`, `criterion`, `images` and `gap`. A dot saw held-out shifts, a ring the
    reported images.
    """
    columns = ("experiment", "criterion", "images", "gap")
    rows = [row for row in zip(*map(table.column, columns), strict=True) if row[1] != ORACLE]
    if not rows:
        return None
    criteria = sorted({row[1] for row in rows}, key=lambda name: _mean([row[3] for row in rows if row[1] == name]))
    experiments = sorted({row[0] for row in rows})
    figure = Figure(figsize=(WIDTH_IN, 1.2 + 0.5 * len(criteria)), layout="constrained")
    axis = figure.subplots()
    colours = pick_colours(len(experiments))
    for number, (experiment, colour) in enumerate(zip(experiments, colours, strict=True)):
        marker, offset = MARKERS[number % len(MARKERS)], 0.6 * ((number + 0.5) / len(experiments) - 0.5)
        axis.plot([], [], marker, color=colour, label=experiment)
        for _, criterion, images, gap in [row for row in rows if row[0] == experiment]:
            size, fill = (5, colour) if images == "held-out" else (10, "none")
            axis.plot(100 * gap, criteria.index(criterion) + offset, marker, color=colour, markersize=size,
                      markerfacecolor=fill, clip_on=False)  # fmt: skip
    axis.set_yticks(range(len(criteria)), criteria)
    axis.set_ylim(len(criteria) - 0.5, -0.5)
    _prepare_gap_axis(axis)
    return figure


def _prepare_gap_axis(axis: Axes) -> None:
    """Let *axis* show gaps in points, of which some are 0 and some are dozens."""
    axis.set_xscale("symlog", linthresh=1)
    axis.set_xlim(left=0)
    axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.xaxis.set_minor_locator(NullLocator())
    axis.set_xlabel("points of error above the oracle's choice; ring: chosen on the reported images")
    axis.legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(1, 1))
    hide_frame(axis)


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
    return _mean([error for cell, error in zip(trial.cells, trial.errors, strict=True) if cell.startswith(f"{shift}|")])


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
