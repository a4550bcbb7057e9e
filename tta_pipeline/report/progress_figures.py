"""Charts of accuracy along streams."""

from itertools import groupby

from matplotlib.figure import Figure

from tta_pipeline.report.figure_style import SERIES, WIDTH_IN, hide_frame, pick_colours
from tta_pipeline.report.tables import Table

_MAX_PANELS = 6
_NAMES_IN_A_ROW = 3
_LINE_STYLES = ("-", "--", ":", "-.")


def progress_lines(progress: Table) -> Figure:
    """Return a panel for each stream, with a step for each interval of each experiment and seed.

    A cross marks a collapse. An upright tick marks an interval with resets, unless most intervals have some.
    """
    columns = (
        "stream",
        "experiment",
        "subset",
        "seed",
        "first_image",
        "accuracy",
        "collapsed_at",
        "num_resets",
        "num_images",
    )
    rows = list(zip(*map(progress.column, columns), strict=True))
    streams = [(name, list(of_it)) for name, of_it in groupby(rows, key=lambda row: row[0])][:_MAX_PANELS]
    experiments = list(dict.fromkeys((row[1], row[2]) for row in rows))
    colours = dict(zip(experiments, pick_colours(len(experiments)), strict=True))
    height = 2.2 + 0.2 * (len(experiments) // _NAMES_IN_A_ROW)
    figure = Figure(figsize=(WIDTH_IN, 0.6 + height * len(streams)), layout="constrained")
    for axis, (name, of_stream) in zip(figure.subplots(len(streams), squeeze=False)[:, 0], streams, strict=True):
        for (experiment, subset, _), line in groupby(of_stream, key=lambda row: row[1:4]):
            own = list(line)
            place = experiments.index((experiment, subset))
            starts, end = [row[4] for row in own], own[-1][4] + own[-1][8]
            axis.plot(
                [*starts, end], [*(row[5] for row in own), own[-1][5]], drawstyle="steps-post", linewidth=1,
                color=colours[experiment, subset],
                linestyle=_LINE_STYLES[place // len(SERIES) % len(_LINE_STYLES)],
                label=experiment if subset == "all" else f"{experiment} ({subset})",
            )  # fmt: skip
            at = [row for row in own if row[4] == row[6]]
            axis.plot([row[4] for row in at], [row[5] for row in at], "x", color="black", markersize=8)
            reset = [row for row in own if row[7]]
            if 2 * len(reset) <= len(own):
                axis.plot(
                    [row[4] for row in reset], [row[5] for row in reset], "|", color=colours[experiment, subset],
                    markersize=9, markeredgewidth=1.5,
                )  # fmt: skip
        axis.set_ylim(0, 1)
        axis.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
        axis.set_ylabel("accuracy")
        named = {text: line for line, text in zip(*axis.get_legend_handles_labels(), strict=True)}
        axis.legend(
            named.values(), named.keys(), frameon=False, fontsize=8, ncols=_NAMES_IN_A_ROW, loc="lower left",
            bbox_to_anchor=(0, 1), title=f"stream {name}", alignment="left",
        )  # fmt: skip
        hide_frame(axis)
    axis.set_xlabel("image of the stream")
    return figure
