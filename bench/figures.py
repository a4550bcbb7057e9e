"""Figures of several turns as text."""

import statistics
from collections.abc import Sequence


def spread(values: Sequence[float], *, digits: int = 0) -> str:
    """Return the median of *values* and their range, with *digits* after the point."""
    low, middle, high = (f"{value:,.{digits}f}" for value in (min(values), statistics.median(values), max(values)))
    return f"{middle} [{low}-{high}]"
