"""Moving pixels: zooming into the centre and sampling between pixels."""

import math
from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from tta_pipeline.data.corruptions.arrays import Floats

Indices: TypeAlias = npt.NDArray[np.intp]
Fold: TypeAlias = Callable[[Indices, int], Indices]
"""Function that maps indices outside an axis of a given size back into the axis."""


def clipped_zoom(images: Floats, factor: float) -> Floats:
    """Return the centre of (N, H, W, ...) images enlarged *factor* times, at their original size.

    As in `clipped_zoom` of the generator scripts, the centre is cut out, enlarged linearly with its outermost pixels
    held in place (like `scipy.ndimage.zoom`), and trimmed.
    """
    for axis in (1, 2):
        images = _zoom_axis(images, factor, axis=axis)
    return images


def _zoom_axis(images: Floats, factor: float, *, axis: int) -> Floats:
    lower, weight = _zoom_positions(images.shape[axis], factor)
    along = weight.reshape([-1 if a == axis else 1 for a in range(images.ndim)])
    first = images.take(lower, axis=axis)
    return first + along * (images.take(lower + 1, axis=axis) - first)


def _zoom_positions(size: int, factor: float) -> tuple[Indices, Floats]:
    """Return, for every output pixel, the input pixel before its position and the weight of the pixel after it."""
    crop = math.ceil(size / factor)
    zoomed = round(crop * factor)
    position = ((zoomed - size) // 2 + np.arange(size)) * (crop - 1) / (zoomed - 1)
    lower = np.minimum(position.astype(np.intp), crop - 2)
    return (size - crop) // 2 + lower, (position - lower).astype(np.float32)


def mirror(indices: Indices, size: int) -> Indices:
    """Fold indices at the centre of the edge pixels, c b | a b c | b a."""
    folded = indices % (2 * size - 2)
    return np.minimum(folded, 2 * size - 2 - folded)


def reflect(indices: Indices, size: int) -> Indices:
    """Fold indices at the outer border of the edge pixels, b a | a b c | c b."""
    folded = indices % (2 * size)
    return np.minimum(folded, 2 * size - 1 - folded)


def sample(images: Floats, positions: Floats, *, fold: Fold) -> Floats:
    """Return (N, H, W, C) images read bilinearly at *positions*, (N, 2, H, W) rows and columns."""
    whole = np.floor(positions)
    down, right = np.moveaxis(positions - whole, 1, 0)[..., np.newaxis]
    top, left = np.moveaxis(whole.astype(np.intp), 1, 0)
    read = _reader(images, fold)
    upper = _lerp(read(top, left), read(top, left + 1), right)
    lower = _lerp(read(top + 1, left), read(top + 1, left + 1), right)
    return _lerp(upper, lower, down)


def _lerp(start: Floats, end: Floats, weight: Floats) -> Floats:
    return start + weight * (end - start)


def _reader(images: Floats, fold: Fold) -> Callable[[Indices, Indices], Floats]:
    count, height, width, channels = images.shape
    pixels = images.reshape(-1, channels)
    starts = np.arange(count)[:, np.newaxis, np.newaxis] * height

    def read(rows: Indices, columns: Indices) -> Floats:
        found: Floats = pixels.take((starts + fold(rows, height)) * width + fold(columns, width), axis=0)
        return found

    return read
