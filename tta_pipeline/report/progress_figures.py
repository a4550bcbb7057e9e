"""Charts of accuracy along streams."""

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tta_pipeline.report.figure_style import SERIES, WIDTH_IN, hide_frame, pick_colours
from tta_pipeline.report.tables import Table

_MAX_PANELS = 6
_MAX_NAMES_IN_A_ROW = 3
_LETTER_IN, _HANDLE_IN = 0.064, 0.5
"""Width of a letter and of the line before a name in a legend, in inches."""
_LINE_STYLES = ("-", "--", ":", "-.")
_LEAST_SHARE = 1 / 4
"""A step of fewer images than this share of the longest is joined to the step before: few images say little."""


class _Step(NamedTuple):
    """A row of the progress of a stream, with the names of its columns."""

    protocol: str
    stream: str
    experiment: str
    subset: str
    seed: int
    first_image: int
    num_images: int
    accuracy: float
    num_resets: int
    collapsed_at: int | None

    def joined(self, later: "_Step") -> "_Step":
        """Return this step and the *later* one as one."""
        num_images = self.num_images + later.num_images
        accuracy = sum(each.accuracy * each.num_images for each in (self, later)) / num_images
        return self._replace(num_images=num_images, accuracy=accuracy, num_resets=self.num_resets + later.num_resets)


def progress_lines(progress: Table) -> Figure:
    """Return a panel for each protocol and stream, with a line for each experiment and seed.

    A cross marks a collapse. An upright tick marks a step with resets, unless most steps have some.
    """
    rows = [_Step(*row) for row in zip(*map(progress.column, _Step._fields), strict=True)]
    panels = [(name, list(of_it)) for name, of_it in groupby(rows, key=lambda row: row[:2])][:_MAX_PANELS]
    experiments = list(dict.fromkeys((step.experiment, step.subset) for _, steps in panels for step in steps))
    styles = {
        each: (colour, _LINE_STYLES[place // len(SERIES) % len(_LINE_STYLES)])
        for place, (each, colour) in enumerate(zip(experiments, pick_colours(len(experiments)), strict=True))
    }
    heights = [_height_of(steps) for _, steps in panels]
    figure = Figure(figsize=(WIDTH_IN, sum(heights) + 0.3), layout="constrained")
    axes = figure.subplots(len(panels), squeeze=False, height_ratios=heights)[:, 0]
    for axis, ((protocol, stream), steps) in zip(axes, panels, strict=True):
        for (experiment, subset, _), line in groupby(steps, key=lambda step: step[2:5]):
            _draw_line(axis, _join_short(line), *styles[experiment, subset])
        axis.set_ylim(0, 1)
        axis.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
        axis.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
        axis.set_ylabel("accuracy")
        named = {text: line for line, text in zip(*axis.get_legend_handles_labels(), strict=True)}
        axis.legend(
            named.values(), named.keys(), frameon=False, fontsize=8, ncols=_names_in_a_row(steps), loc="lower left",
            bbox_to_anchor=(0, 1), title=f"{protocol}, stream {stream}", alignment="left",
        )  # fmt: skip
        hide_frame(axis)
    axis.set_xlabel("image of the stream")
    return figure


def _height_of(steps: Sequence[_Step]) -> float:
    """Return the height of a panel in inches: more for a longer legend."""
    num_names = len({(step.experiment, step.subset) for step in steps})
    return 1.7 + 0.2 * ((num_names - 1) // _names_in_a_row(steps))


def _names_in_a_row(steps: Sequence[_Step]) -> int:
    """Return how many names fit side by side in a legend."""
    longest_in = _HANDLE_IN + _LETTER_IN * max(len(step.experiment) for step in steps)
    return min(_MAX_NAMES_IN_A_ROW, max(1, int(WIDTH_IN / longest_in)))


def _join_short(steps: Iterable[_Step]) -> Sequence[_Step]:
    """Return the *steps* of a line, each short one joined to the one before."""
    first, *others = steps
    least = _LEAST_SHARE * max(step.num_images for step in (first, *others))
    joined = [first]
    for step in others:
        if step.num_images < least:
            joined.append(joined.pop().joined(step))
        else:
            joined.append(step)
    return joined


def _draw_line(axis: Axes, steps: Sequence[_Step], colour: str, style: str) -> None:
    """Draw the accuracy of one experiment and seed, its collapse and its resets."""
    first, last = steps[0], steps[-1]
    starts, heights = [step.first_image for step in steps], [step.accuracy for step in steps]
    axis.plot(
        [*starts, last.first_image + last.num_images], [*heights, last.accuracy], drawstyle="steps-post", linewidth=1,
        color=colour, linestyle=style,
        label=first.experiment if first.subset == "all" else f"{first.experiment} ({first.subset})",
    )  # fmt: skip
    if first.collapsed_at is not None:
        height = [step.accuracy for step in steps if step.first_image <= first.collapsed_at][-1]
        axis.plot([first.collapsed_at], [height], "x", color="black", markersize=8)
    reset = [step for step in steps if step.num_resets]
    if 2 * len(reset) <= len(steps):
        axis.plot(
            [step.first_image for step in reset], [step.accuracy for step in reset], "|", color=colour, markersize=9,
            markeredgewidth=1.5,
        )  # fmt: skip
