"""Templates and colours of the pages."""

from functools import cache
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined

from tta_pipeline.report.figure_style import COLOURS
from tta_pipeline.report.tables import as_html_text, format_value

STATIC = Path(__file__).parent / "static"
"""Files that the pages load: style sheet, scripts, and Vega-Lite."""
_READABLE_ON_LIGHT = 0.18
"""Relative luminance above which black text has more contrast than white (WCAG 2.2, section 1.4.3)."""


def render_page(template: str, **facts: object) -> str:
    """Return the page of *template* with *facts*."""
    return _environment().get_template(template).render(**facts)


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader(__package__, "templates"), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True,
    )  # fmt: skip
    environment.filters["with_code"] = as_html_text
    environment.filters["as"] = lambda value, column: format_value(column, value)
    return environment


@cache
def error_colours(error: float) -> tuple[str, str]:
    """Return the background colour of an *error* in [0, 1], as in the figures, and the text colour on it."""
    import matplotlib as mpl

    red, green, blue, _ = mpl.colormaps[COLOURS](error)
    linear = [each / 12.92 if each <= 0.04045 else ((each + 0.055) / 1.055) ** 2.4 for each in (red, green, blue)]
    luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    return mpl.colors.to_hex((red, green, blue)), "#000" if luminance > _READABLE_ON_LIGHT else "#fff"
