"""Charts of time: shares of the stages, throughput from run to run, and the speed of each loader."""

from collections.abc import Mapping

import numpy as np
from matplotlib.figure import Figure

from tta_pipeline.report.figure_style import MARKERS, WIDTH_IN, hide_frame, pick_colours
from tta_pipeline.report.tables import Table

_STAGES = {
    "scan_s": "scan manifest",
    "setup_s": "set up",
    "data_wait_s": "wait for data",
    "compute_s": "compute",
    "other_s": "other",
}
_LOADERS = {"indexed": "shards by offset", "webdataset": "shards front to back", "imagefolder": "loose files"}
_MAX_SHOWN = 6
_MAX_NAMED_RUNS = 12


def stage_bars(times: Table) -> Figure:
    """Return a bar per experiment: the share of time in each stage, and the total milliseconds per image."""
    names = [
        experiment if subset == "all" else f"{experiment} ({subset})"
        for experiment, subset in zip(times.column("experiment"), times.column("subset"), strict=True)
    ]
    seconds = np.array([[value or 0 for value in times.column(column)] for column in _STAGES], float)
    shares = seconds / seconds.sum(0)
    figure = Figure(figsize=(WIDTH_IN, 1.5 + 0.26 * len(names)), layout="constrained")
    axis = figure.subplots()
    colours = pick_colours(len(_STAGES))
    for number, stage in enumerate(_STAGES.values()):
        bars = axis.barh(
            names, shares[number], left=shares[:number].sum(0), label=stage, color=colours[number]
        )  # fmt: skip
    milliseconds = 1000 * seconds.sum(0) / np.array(times.column("num_samples"), float)
    axis.bar_label(bars, [f"{value:.3g} ms" for value in milliseconds], padding=4, fontsize=8)
    axis.set_xlim(0, 1.16)
    axis.set_xticks(np.linspace(0, 1, 6))
    axis.xaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    axis.set_xlabel("share of the time; on the right, ms per image")
    axis.invert_yaxis()
    axis.margins(y=0.01)
    axis.legend(frameon=False, ncols=3, loc="lower left", bbox_to_anchor=(0, 1), fontsize=9)
    hide_frame(axis)
    return figure


def throughput_dots(history: Table) -> Figure | None:
    """Return the images/s of each run for the experiments with the most runs; None if none has two runs.

    Dots of one colour are runs under equal conditions; several conditions of one experiment are numbered.
    """
    speeds: dict[str, list[tuple[int, float]]] = {}
    runs = list(dict.fromkeys(history.column("run_id")))
    columns = ("experiment", "conditions", "run_id", "images_per_s")
    seen: dict[str, list[str]] = {}
    for experiment, conditions, run, images_per_s in zip(*map(history.column, columns), strict=True):
        known = seen.setdefault(experiment, [])
        if conditions not in known:
            known.append(conditions)
        number = known.index(conditions) + 1
        name = experiment if number == 1 else f"{experiment}, conditions {number}"
        speeds.setdefault(name, []).append((runs.index(run), images_per_s))
    # Sorting is stable: experiments with equally many runs keep their order.
    shown = sorted((name for name, each in speeds.items() if len(each) > 1), key=lambda name: -len(speeds[name]))
    if not shown:
        return None
    shown = shown[:_MAX_SHOWN]
    figure = Figure(figsize=(WIDTH_IN, 3.4), layout="constrained")
    axis = figure.subplots()
    for experiment, colour, marker in zip(shown, pick_colours(len(shown)), MARKERS, strict=False):
        numbers, images_per_s = zip(*sorted(speeds[experiment]), strict=True)
        axis.plot(numbers, images_per_s, label=experiment, color=colour, marker=marker, markersize=5, linestyle="none")
    used = sorted({number for name in shown for number, _ in speeds[name]})
    used = used[:: -(-len(used) // _MAX_NAMED_RUNS)]
    axis.set_xticks(used, [runs[number][:8] for number in used], rotation=40, ha="right", fontsize=7)
    axis.set_ylim(bottom=0)
    axis.set_ylabel("median images/s")
    axis.set_xlabel("run")
    axis.legend(frameon=False, ncols=3, loc="lower left", bbox_to_anchor=(0, 1), fontsize=9, handletextpad=0.1)
    hide_frame(axis)
    return figure


def loader_comparison_bars(comparison: Table) -> Figure:
    """Return the images/s of the trainings by each loader, and the share of time spent waiting for the loader."""
    columns = ("model", "loader", "images_per_s", "data_wait_share")
    rows = list(zip(*map(comparison.column, columns), strict=True))
    names = [f"{name}: {_LOADERS[loader]}" for name, loader, _, _ in rows]
    colours = dict(zip(_LOADERS, pick_colours(len(_LOADERS)), strict=True))
    figure = Figure(figsize=(WIDTH_IN, 1.1 + 0.3 * len(rows)), layout="constrained")
    speeds, waits = figure.subplots(1, 2, sharey=True)
    for axis, column, label, form in (
        (speeds, 2, "images/s", "{:,.0f}"), (waits, 3, "time spent waiting for data", "{:.0%}"),
    ):  # fmt: skip
        for place, row in enumerate(rows):
            bar = axis.barh(place, row[column], color=colours[row[1]])
            axis.bar_label(bar, [form.format(row[column])], padding=4, fontsize=8)
        axis.set_xlabel(label)
        hide_frame(axis)
    speeds.set_yticks(range(len(rows)), names)
    speeds.set_xlim(0, 1.3 * max(row[2] for row in rows))
    waits.set_xlim(0, 1.2)
    waits.set_xticks(np.linspace(0, 1, 6))
    waits.xaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    speeds.invert_yaxis()
    return figure


def speed_bars(images_per_s: Mapping[str, tuple[float, float, float]]) -> Figure:
    """Return a bar chart of speeds: of each name the lowest, the median and the highest of its repeats."""
    figure = Figure(figsize=(7, 1 + 0.4 * len(images_per_s)), layout="constrained")
    axis = figure.subplots()
    lowest, speeds, highest = np.array(list(images_per_s.values())).T
    ranges = [speeds - lowest, highest - speeds]
    bars = axis.barh(list(images_per_s), speeds, xerr=ranges, color=pick_colours(1)[0])
    axis.bar_label(bars, [f"{speed:,.0f}" for speed in speeds], padding=4)
    axis.set_xlim(0, 1.15 * highest.max())
    axis.invert_yaxis()
    axis.set_xlabel("images/s, median and range")
    hide_frame(axis)
    return figure
