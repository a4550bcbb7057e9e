"""Pictures of streams: the order of corruptions and classes."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from tta_pipeline.evaluation.open_stream import OpenStream
from tta_pipeline.report.figure_style import hide_frame

_MAX_SHOWN = 6000
_SEVERITY_COLOURS = "cividis_r"  # higher severities are darker, also in print


def stream_picture(segments: Sequence[OpenStream], *, title: str = "") -> Figure:
    """Return a plot of corruption (above) and class (below) of a stream's samples, in stream order.

    Colour shows the severity. A long stream is thinned out evenly.
    """
    corruptions, severities, labels = (np.concatenate(column) for column in zip(*map(_columns, segments), strict=True))
    names = list(dict.fromkeys(manifest.corruption for opened in segments for manifest in opened.manifests))
    shown = np.unique(np.linspace(0, len(labels) - 1, min(len(labels), _MAX_SHOWN)).astype(int))
    figure = Figure(figsize=(8, 1.4 + 0.16 * len(names) + 1.2), layout="constrained")
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=[0.16 * len(names) + 0.4, 1.2])
    rows = np.array([names.index(name) for name in corruptions[shown].tolist()])
    points = upper.scatter(
        shown,
        rows,
        c=severities[shown],
        s=6,
        marker="|",
        linewidths=1,
        cmap=_SEVERITY_COLOURS,
        vmin=0,
        vmax=max(5, severities.max()),
    )
    upper.set_yticks(range(len(names)), names, fontsize=7)
    upper.set_ylim(len(names) - 0.4, -0.6)
    lower.scatter(shown, labels[shown], s=1.2, color="0.15", linewidths=0)
    lower.set_ylabel("class")
    lower.yaxis.set_major_locator(MaxNLocator(integer=True))
    lower.set_xlabel("sample of the stream")
    lower.set_xlim(0, len(labels))
    figure.colorbar(points, ax=[upper, lower], label="severity (0: clean)", ticks=MaxNLocator(integer=True), pad=0.01)
    upper.set_title(title, fontsize=10, loc="left")
    hide_frame(upper)
    hide_frame(lower)
    return figure


def _columns(opened: OpenStream) -> tuple[npt.NDArray[np.str_], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    indices = opened.order.indices
    numbers = opened.joined.set_numbers(indices)
    cells = [manifest.cell for manifest in opened.manifests]
    return (
        np.array([cell.corruption for cell in cells])[numbers],
        np.array([cell.severity for cell in cells])[numbers],
        opened.joined.index.labels[indices],
    )
