"""Plasma: a fractal height map that looks like clouds."""

import numpy as np

from tta_pipeline.data.corruptions.arrays import Floats
from tta_pipeline.data.corruptions.randomness import Generators, uniform


def plasma_fractal(rngs: Generators, *, size: int, decay: float) -> Floats:
    """Return one (size, size) map in [0, 1] per generator, by the diamond-square algorithm on a torus.

    *size* is a power of two. Every halving of the grid divides the random displacement by decay squared, as in
    `plasma_fractal` of the generator scripts.
    """
    displacement = uniform(rngs, (size, size))
    heights = np.zeros_like(displacement)
    step, amplitude = size, np.float32(100**2)
    while step >= 2:
        _refine(heights, amplitude * displacement, step=step)
        step, amplitude = step // 2, amplitude / np.float32(decay**2)
    heights -= heights.min(axis=(1, 2), keepdims=True)
    heights /= heights.max(axis=(1, 2), keepdims=True)
    return heights


def _refine(heights: Floats, displacement: Floats, *, step: int) -> None:
    """Fill the midpoints between grid points *step* apart: first of the squares, then of their sides."""
    on, between = slice(None, None, step), slice(step // 2, None, step)
    corners = heights[:, on, on]
    sides = corners + np.roll(corners, -1, axis=1)
    heights[:, between, between] = (sides + np.roll(sides, -1, axis=2)) / 4 + displacement[:, between, between]
    for row_slice, column_slice, along, across in ((on, between, 2, 1), (between, on, 1, 2)):
        middles = heights[:, between, between]
        ends = corners + np.roll(corners, -1, axis=along) + middles + np.roll(middles, 1, axis=across)
        heights[:, row_slice, column_slice] = ends / 4 + displacement[:, row_slice, column_slice]
