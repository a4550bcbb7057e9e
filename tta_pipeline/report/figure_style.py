"""Colours, styles, labels and encodings shared by all charts."""

import io
import re
import textwrap
from collections.abc import Sequence

import matplotlib as mpl
import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.transforms import Bbox
from PIL import Image

COLOURS = "cividis"  # perceptually uniform: readable in print and by colour-blind readers
# Colour-blind readers can tell the first six apart; all have a contrast of 3 and more on white and on the dark page.
SERIES = (
    "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#767676", "#A6761D", "#7B5CE0", "#C8102E", "#6F8F00", "#2A9FC9",
    "#B03FC0", "#9A5B4F",
)  # fmt: skip
MARKERS = ("o", "s", "^", "D", "v", "P")
WIDTH_IN = 5.2
"""Width of a figure in inches: its text stays readable when a phone scales it down, and two fit beside each other."""
ON_COLOUR = "#1a1a1a"
"""Ink on a coloured field, which stays dark in the dark theme."""
_QUIET = "#555555"
_NOTE_LINE_IN, _NOTE_LETTERS = 0.16, 85
_DARK_THEME = f"""<style>
:root {{ color-scheme: light dark }}
@media (prefers-color-scheme: dark) {{
text:not([style*="fill"]) {{ fill: #e8e8e6 }}
[style*="fill: {_QUIET}"] {{ fill: #b0b0ac !important }}
[style*="stroke: #000000"] {{ stroke: #e8e8e6 !important }}
}}
</style>"""
"""Ink for a dark page. Programs without themes, such as Inkscape, keep black."""
_DIRECTIONS = ((1, 1), (1, -1), (1, 0), (0, 1), (0, -1), (-1, 0), (-1, 1), (-1, -1))
_DISTANCES_PT = (3, 7, 13, 22, 33, 46, 60)


def pick_colours(number: int) -> Sequence[str]:
    """Return *number* colours; after the last, they begin again."""
    return [SERIES[place % len(SERIES)] for place in range(number)]


def hide_frame(axis: Axes) -> None:
    """Hide the top and right spines."""
    axis.spines[["top", "right"]].set_visible(False)


def label_points(axis: Axes, points: Sequence[tuple[str, float, float]]) -> None:
    """Write the name of each of *points*, (name, x, y), next to it without hiding a point or another name.

    A thin line connects a point to its name if they are not adjacent.
    """
    figure = axis.get_figure(root=True)
    assert figure is not None
    figure.draw_without_rendering()  # the layout decides where the points are
    scale = figure.dpi / 72
    dots = axis.transData.transform([point[1:] for point in points])
    taken = [_box(dot, np.full(2, 4 * scale)) for dot in dots]
    for number, ((name, x, y), dot) in enumerate(zip(points, dots, strict=True)):
        text = axis.annotate(
            name, (x, y), (0, 0), textcoords="offset points", fontsize=9, ha="center", va="center",
            arrowprops={"arrowstyle": "-", "color": "0.5", "linewidth": 0.5, "shrinkB": 3},
        )  # fmt: skip
        text.set_in_layout(False)
        half = np.array(text.get_window_extent().size) / 2
        ways = [
            np.array(direction) * (distance * scale + half) for distance in _DISTANCES_PT for direction in _DIRECTIONS
        ]
        boxes = [_box(dot + way, half) for way in ways]
        costs = [
            _hidden_area(box, taken) + _area_outside(box, axis.bbox) + 5 * _is_nearer_to_another(box, dots, number)
            for box in boxes
        ]
        best = int(np.argmin(costs))
        taken.append(boxes[best])
        text.xyann = tuple(ways[best] / scale)


def _box(middle: npt.NDArray[np.float64], half: npt.NDArray[np.float64]) -> Bbox:
    return Bbox([middle - half, middle + half])


def _hidden_area(box: Bbox, taken: Sequence[Bbox]) -> float:
    """Return the area of *box* that is taken."""
    common = [Bbox.intersection(box, each) for each in taken]
    return sum(each.width * each.height for each in common if each is not None)


def _area_outside(box: Bbox, axes: Bbox) -> float:
    """Return the area of *box* outside of *axes*."""
    inside = Bbox.intersection(box, axes)
    return box.width * box.height - (inside.width * inside.height if inside is not None else 0)


def _is_nearer_to_another(box: Bbox, dots: npt.NDArray[np.float64], number: int) -> bool:
    """Return whether *box* is nearer to another of *dots* than to dot *number*."""
    distances = np.linalg.norm(np.clip(dots, box.min, box.max) - dots, axis=1)
    return bool(distances[number] > distances.min())


def add_notes(figure: Figure, notes: Sequence[str]) -> None:
    """Write *notes* above the chart, as part of the picture, which becomes higher for them."""
    lines = [line for note in notes for line in textwrap.wrap(note, _NOTE_LETTERS)]
    if lines:
        figure.set_figheight(figure.get_figheight() + _NOTE_LINE_IN * len(lines))
        figure.suptitle("\n".join(lines), fontsize=8, color=_QUIET, x=0.01, ha="left")


def lay_out(figure: Figure) -> None:
    """Place the parts of *figure* once and for all; otherwise each format does it again, which takes half its time."""
    figure.draw_without_rendering()
    figure.set_layout_engine(None)  # "none" would be an engine that places nothing, for which each format draws twice


def as_png(figure: Figure) -> bytes:
    """Return *figure* as PNG bytes."""
    drawn, buffer = io.BytesIO(), io.BytesIO()
    figure.savefig(drawn, format="png", dpi=120)
    with Image.open(drawn) as image:  # 256 colours are enough for a chart, and take a third of the bytes
        image.convert("RGB").quantize(256, dither=Image.Dither.NONE).save(buffer, "PNG", optimize=True)
    return buffer.getvalue()


def as_pdf(figure: Figure) -> bytes:
    """Return *figure* as PDF bytes, with fonts that publishers accept."""
    buffer = io.BytesIO()
    with mpl.rc_context({"pdf.fonttype": 42}):
        figure.savefig(buffer, format="pdf", metadata={"CreationDate": None})
    return buffer.getvalue()


def as_svg(figure: Figure) -> str:
    """Return *figure* as SVG on no ground, in the reader's theme.

    Text stays text as it is, and coordinates are rounded to hundredths of a point.
    """
    buffer = io.StringIO()
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "tta_pipeline", "font.sans-serif": ["DejaVu Sans"]}):
        figure.savefig(buffer, format="svg", metadata={"Date": None}, transparent=True)
    text = re.sub("<[^>]*>", lambda tag: re.sub(r"(\d\.\d\d)\d+", r"\1", tag[0]), buffer.getvalue())
    text = text[text.index("<svg") :].replace("<svg ", '<svg style="white-space: pre" ', 1)
    return text.replace(">", f">\n{_DARK_THEME}", 1)
