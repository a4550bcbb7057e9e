"""The chart of an alarm: the evidence along the stream of each cell."""

import math
from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple

from matplotlib.figure import Figure

from tta_pipeline.benchmarks.watch_settings import STREAM
from tta_pipeline.report.figure_style import WIDTH_IN, hide_frame, pick_colours
from tta_pipeline.report.tables import Table
from tta_pipeline.results.alarm_record import WatchedBenchmark

_MAX_SHIFTS = 6
_MOST_EVIDENCE = 3.0
"""Height of the chart, as a multiple of the evidence at which the alarm is raised."""


class Curve(NamedTuple):
    """The evidence along the stream of one cell."""

    corruption: str
    severity: int
    alarm_at: int | None
    images: Sequence[int]
    log10_wealth: Sequence[float]

    @property
    def name(self) -> str:
        """The cell, and when its alarm was raised."""
        cell = f"{self.corruption} {self.severity}" if self.severity else self.corruption
        return f"{cell}: {'no alarm' if self.alarm_at is None else f'after {self.alarm_at:,}'}"


def curves_of_record(watched: WatchedBenchmark) -> list[Curve]:
    """Return the curve of each cell in *watched*."""
    return [
        Curve(each.corruption, each.severity, each.alarm_at, each.wealth_images, each.log10_wealth)
        for each in watched.cells
    ]


def curves_of_table(table: Table) -> list[Curve]:
    """Return the curves in *table*, the answer to `ALARM_WEALTH`."""
    columns = ("corruption", "severity", "alarm_at", "image", "log10_wealth")
    rows = zip(*map(table.column, columns), strict=True)
    return [
        Curve(*cell, *map(list, zip(*(row[3:] for row in own), strict=True)))
        for cell, own in groupby(rows, key=lambda row: row[:3])
    ]


def wealth_curves(curves: Sequence[Curve], *, level: float) -> Figure:
    """Return the evidence along the streams, with a point where each alarm was raised.

    Shown are the clean images, those that arrived and, of the highest severity, the shifts with the latest alarms.
    """
    shown, threshold = _choose(curves), -math.log10(level)
    figure = Figure(figsize=(WIDTH_IN, 3.6), layout="constrained")
    axis = figure.subplots()
    for curve, colour in zip(shown, ["black", *pick_colours(len(shown))], strict=False):
        axis.plot([0, *curve.images], [0, *curve.log10_wealth], color=colour, linewidth=1.3, label=curve.name)
        if curve.alarm_at is not None:
            axis.plot(curve.alarm_at, threshold, "o", color=colour, markersize=6)
    axis.axhline(threshold, color="0.4", linewidth=0.8, linestyle="--")
    axis.text(
        0.99, threshold, f"alarm at level {level:g}", transform=axis.get_yaxis_transform(), ha="right", va="bottom",
        fontsize=8,
    )  # fmt: skip
    axis.set_ylim(min(0.0, *(min(curve.log10_wealth) for curve in shown)) - 0.3, _MOST_EVIDENCE * threshold)
    axis.set_xscale("symlog", linthresh=10)
    axis.set_xlim(0, max(curve.images[-1] for curve in shown))
    axis.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axis.set_xlabel("image of the stream")
    axis.set_ylabel("evidence of a shift, log10 of the wealth")
    axis.legend(frameon=False, fontsize=8, ncols=2, loc="lower left", bbox_to_anchor=(0, 1))
    hide_frame(axis)
    return figure


def _choose(curves: Sequence[Curve]) -> list[Curve]:
    """Return the curves of clean images and of what arrived, and those of the highest severity with latest alarms."""
    clean = [each for name in ("clean", STREAM) for each in curves if each.corruption == name]
    others = [each for each in curves if each.corruption not in ("clean", STREAM)]
    highest = max((each.severity for each in others), default=0)
    of_highest = [each for each in others if each.severity == highest]
    return [*clean, *sorted(of_highest, key=lambda each: -(each.alarm_at or math.inf))[:_MAX_SHIFTS]]
