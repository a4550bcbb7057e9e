"""Array types of this package and the conversions every corruption shares."""

from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt
from scipy import ndimage

Images: TypeAlias = npt.NDArray[np.uint8]
"""(N, H, W, 3), RGB, 0 to 255."""

Floats: TypeAlias = npt.NDArray[np.float32]


def to_unit(images: Images) -> Floats:
    """Return the images with values in [0, 1]."""
    return np.multiply(images, np.float32(1 / 255), dtype=np.float32)


def to_uint8(images: Floats) -> Images:
    """Return images in [0, 1] as bytes; values outside are clipped.

    The generator scripts truncate instead of rounding, so this does too.
    """
    # Without the thousandth, a value that float32 puts just below an integer would be truncated to the integer below.
    scaled = np.multiply(images, np.float32(255), dtype=np.float32) + np.float32(1e-3)
    return np.clip(scaled, 0, 255, out=scaled).astype(np.uint8)


def luma(images: Floats) -> Floats:
    """Return the grey value of every pixel as (N, H, W, 1), by the weights of ITU-R BT.601."""
    red, green, blue = (images[..., channel, np.newaxis] for channel in range(3))
    grey: Floats = np.float32(0.299) * red + np.float32(0.587) * green + np.float32(0.114) * blue
    return grey


def smooth(
    images: Floats, sigma: float, *, mode: Literal["nearest", "reflect"] = "nearest", truncate: float = 4.0
) -> Floats:
    """Return (N, H, W) or (N, H, W, C) images smoothed with a Gaussian of *sigma* pixels."""
    return ndimage.gaussian_filter(images, sigma, axes=(1, 2), mode=mode, truncate=truncate)
