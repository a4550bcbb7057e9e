"""Spatter: drops of water or splashes of mud on the lens."""

import math
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
from scipy import ndimage

from tta_pipeline.data.corruptions.arrays import Floats, Images, smooth, to_uint8, to_unit
from tta_pipeline.data.corruptions.randomness import Generators, normal

Masks: TypeAlias = npt.NDArray[np.bool_]

TURQUOISE: Floats = np.array([175, 238, 238], dtype=np.float32) / np.float32(255)
BROWN: Floats = np.array([63, 42, 20], dtype=np.float32) / np.float32(255)

EMBOSS = np.array([[[-2, -1, 0], [-1, 1, 1], [0, 1, 2]]], dtype=np.float32)
"""Kernel that lights a relief from one side. The leading axis of size 1 keeps the images of a batch apart."""

SOBEL_DOWN = np.array([[[-1, -2, -1], [0, 0, 0], [1, 2, 1]]], dtype=np.float32)
SOBEL_RIGHT = SOBEL_DOWN.transpose(0, 2, 1)

REACH = 20
"""Distance from the rim of a drop, in pixels, beyond which the brightness of water no longer changes."""

TAN_22_5 = np.float32(math.sqrt(2) - 1)


def spatter(
    images: Images,
    rngs: Generators,
    *,
    mean: float,
    scale: float,
    sigma: float,
    threshold: float,
    strength: float,
    mud: float,
) -> Images:
    """Splash mud (if *mud* is 1) or water on the lens wherever smoothed noise exceeds *threshold*.

    *strength* is the brightness of the water, or the number of pixels by which the mud is softened.
    """
    liquid = smooth(normal(rngs, images.shape[1:3], mean=mean, scale=scale), sigma)
    liquid[liquid < threshold] = 0
    splash = _mud if mud else _water
    return to_uint8(splash(to_unit(images), liquid, strength))


def _mud(unit: Floats, liquid: Floats, strength: float) -> Floats:
    cover = smooth((liquid > 0).astype(np.float32), strength)
    cover[cover < 0.8] = 0
    cover = cover[..., np.newaxis]
    return unit * (1 - cover) + BROWN * cover


def _water(unit: Floats, liquid: Floats, strength: float) -> Floats:
    """Add turquoise light whose pattern is an embossed map of the distance to the rims of the drops."""
    depth = np.floor(255 * liquid)
    distance = _box(np.minimum(_rim_distances(canny(depth, low=50, high=150)), REACH))
    relief = np.clip(ndimage.correlate(_equalise_histogram(distance.astype(np.uint8)), EMBOSS, mode="mirror"), 0, 255)
    glow: Floats = depth * np.rint(_box(relief))
    brightest = glow.max(axis=(1, 2), keepdims=True)
    glow *= np.float32(strength) / np.where(brightest > 0, brightest, np.float32(1))
    return unit + TURQUOISE * glow[..., np.newaxis]


def _box(images: Floats) -> Floats:
    return ndimage.uniform_filter(images, 3, mode="mirror", axes=(1, 2))


def _rim_distances(rims: Masks) -> Floats:
    """Return the distance of every pixel to the nearest rim in its image; infinite if the image has no rim."""
    distances = [ndimage.distance_transform_edt(~rim) if rim.any() else np.full(rim.shape, np.inf) for rim in rims]
    return np.stack(distances).astype(np.float32)


def _equalise_histogram(levels: npt.NDArray[np.uint8]) -> Floats:
    """Spread the levels of each image over 0 to 255 by their cumulative histogram; a single level stays."""
    count, pixels = len(levels), levels[0].size
    bins = np.arange(count)[:, np.newaxis, np.newaxis] * 256 + levels
    cumulative = np.bincount(bins.ravel(), minlength=256 * count).reshape(count, 256).cumsum(axis=1)
    lowest = np.take_along_axis(cumulative, levels.min(axis=(1, 2))[:, np.newaxis].astype(np.intp), axis=1)
    spread = np.clip(cumulative - lowest, 0, None) * 255 / np.maximum(pixels - lowest, 1)
    equalised = np.rint(spread).astype(np.float32).ravel()[bins]
    return np.where(lowest[..., np.newaxis] == pixels, levels, equalised).astype(np.float32)


def canny(images: Floats, *, low: float, high: float) -> Masks:
    """Return the edges of (N, H, W) images: ridges of the gradient above *low* that touch a ridge above *high*.

    Canny 1986, with Sobel gradients and |dx| + |dy| for their length.
    """
    down = ndimage.correlate(images, SOBEL_DOWN, mode="nearest")
    right = ndimage.correlate(images, SOBEL_RIGHT, mode="nearest")
    length = np.abs(down) + np.abs(right)
    candidates = _ridges(length, down, right) & (length > low)
    touching = np.ones((1, 3, 3), dtype=np.bool_)
    return ndimage.binary_propagation(candidates & (length > high), structure=touching, mask=candidates)


def _ridges(length: Floats, down: Floats, right: Floats) -> Masks:
    """Return where the gradient exceeds both neighbours along its direction, rounded to 45 degrees."""
    height, width = length.shape[1:]
    padded = np.pad(length, ((0, 0), (1, 1), (1, 1)))

    def peaks(row: int, column: int) -> Masks:
        before = padded[:, 1 - row : 1 - row + height, 1 - column : 1 - column + width]
        after = padded[:, 1 + row : 1 + row + height, 1 + column : 1 + column + width]
        return (length > before) & (length >= after)

    flat = np.abs(down) < TAN_22_5 * np.abs(right)
    steep = np.abs(right) < TAN_22_5 * np.abs(down)
    diagonal = np.where(down * right >= 0, peaks(1, 1), peaks(1, -1))
    return np.where(flat, peaks(0, 1), np.where(steep, peaks(1, 0), diagonal))
