"""Colours, styles and encodings shared by all charts."""

import io
import re
from collections.abc import Sequence

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image

COLOURS = "cividis"  # perceptually uniform: readable in print and by colour-blind readers
# Hatches of lines only: dots and circles take a hundred kilobytes each in an SVG.
HATCHES = ("", "///", "xxx", "\\\\\\", "---", "+++")
MARKERS = ("o", "s", "^", "D", "v", "P")


def pick_colours(number: int) -> Sequence[tuple[float, float, float, float]]:
    """Return *number* colours, from dark to light."""
    return [mpl.colormaps[COLOURS](0.05 + 0.85 * place / max(1, number - 1)) for place in range(number)]


def hide_frame(axis: Axes) -> None:
    """Hide the top and right spines."""
    axis.spines[["top", "right"]].set_visible(False)


def add_notes(figure: Figure, notes: Sequence[str]) -> None:
    """Write *notes* above the chart, as part of the picture, a line each."""
    if notes:
        figure.suptitle("\n".join(notes), fontsize=7, color="#555555", x=0.01, ha="left")


def as_png(figure: Figure, *, dots_per_inch: int = 120) -> bytes:
    """Return *figure* as PNG bytes."""
    drawn, buffer = io.BytesIO(), io.BytesIO()
    figure.savefig(drawn, format="png", dpi=dots_per_inch)
    with Image.open(drawn) as image:  # 256 colours are enough for a chart, and take a third of the bytes
        image.convert("RGB").quantize(256, dither=Image.Dither.NONE).save(buffer, "PNG", optimize=True)
    return buffer.getvalue()


def as_svg(figure: Figure) -> str:
    """Return *figure* as SVG; text stays text, and coordinates are rounded to hundredths of a point."""
    buffer = io.StringIO()
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "tta_pipeline", "font.sans-serif": ["DejaVu Sans"]}):
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    text = re.sub(r"(\d\.\d\d)\d+", r"\1", buffer.getvalue())
    return text[text.index("<svg") :].replace("<svg ", '<svg style="white-space: pre" ', 1)
