"""Blur: the lens, the pane, the hand or the zoom smears the image."""

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from scipy import fft, ndimage

from tta_pipeline.data.corruptions.arrays import Floats, Images, smooth, to_uint8, to_unit
from tta_pipeline.data.corruptions.geometry import Indices, clipped_zoom
from tta_pipeline.data.corruptions.randomness import Generators, per_image


def gaussian_blur(images: Images, *, sigma: float) -> Images:
    """Smooth with a Gaussian of *sigma* pixels."""
    return to_uint8(smooth(to_unit(images), sigma))


def defocus_blur(images: Images, *, radius: float, alias_blur: float) -> Images:
    """Spread every pixel over a disk, like a lens out of focus."""
    kernel = disk(radius, alias_blur=alias_blur)
    reach = len(kernel) // 2
    padded = np.pad(to_unit(images), ((0, 0), (reach, reach), (reach, reach), (0, 0)), mode="reflect")
    # One image at a time, because an FFT over a batch may round differently than an FFT over one image.
    return to_uint8(np.stack([_convolve(image, kernel) for image in padded]))


def _convolve(padded: Floats, kernel: Floats) -> Floats:
    """Return the valid part of the convolution with the (K, K, 1) *kernel*; importing scipy.signal takes 0.5 s."""
    size = [fft.next_fast_len(side, real=True) for side in padded.shape[:2]]
    # Use double precision, because processors differ in the last bit of complex products.
    spectrum, kernel_spectrum = (fft.rfft2(part.astype(np.float64), size, axes=(0, 1)) for part in (padded, kernel))
    # Values that wrap around the border of the transform land before the first complete overlap and are cut off.
    first = len(kernel) - 1
    convolved = fft.irfft2(spectrum * kernel_spectrum, size, axes=(0, 1))[
        first : padded.shape[0], first : padded.shape[1]
    ]
    return convolved.astype(np.float32)


def disk(radius: float, *, alias_blur: float) -> Floats:
    """Return a disk kernel with an edge softened by a small Gaussian, as (K, K, 1).

    As upstream, the Gaussian mirrors at the border of the grid. The larger disks touch that border, so their sum is not
    exactly 1.
    """
    reach = max(8, int(radius))
    rows, columns = np.ogrid[-reach : reach + 1, -reach : reach + 1]
    aliased = (rows**2 + columns**2 <= radius**2).astype(np.float32)
    kernel = ndimage.gaussian_filter(aliased / aliased.sum(), alias_blur, mode="mirror", radius=1 if radius <= 8 else 2)
    used = kernel.any(axis=0)
    return kernel[used][:, used, np.newaxis]


def glass_blur(images: Images, rngs: Generators, *, sigma: float, reach: float, passes: float) -> Images:
    """Look through frosted glass: smooth, let each pixel take the value of a nearby one, smooth again."""
    blurred = to_uint8(smooth(to_unit(images), sigma))
    origins = np.arange(blurred[..., 0].size)
    for _ in range(int(passes)):
        origins = origins[_glass_blur_pass(blurred.shape[1:3], rngs, reach=int(reach))]
    shuffled = blurred.reshape(-1, 3)[origins].reshape(blurred.shape)
    return to_uint8(smooth(to_unit(shuffled), sigma))


def _glass_blur_pass(size: tuple[int, int], rngs: Generators, *, reach: int) -> Indices:
    """Return, for every pixel of the flattened batch, the pixel that its value comes from after one pass of glass blur.

    The generator scripts walk through an image from its end to its start and intend to swap every pixel with a
    neighbour up to *reach* away. NumPy gives them views, so their swap is a copy: the pixel takes the neighbour's
    current value, and the neighbour keeps its value. A neighbour nearer to the end was visited before, so its value
    already comes from its own neighbour; a neighbour nearer to the start still has its own value.
    """
    height, width = size
    origins = np.arange(len(rngs) * height * width)
    inner = (slice(None), slice(reach + 1, height - reach + 1), slice(reach + 1, width - reach + 1))
    visited = origins.reshape(-1, height, width)[inner]
    steps = per_image(rngs, lambda rng: rng.integers(-reach, reach, size=(2, *visited.shape[1:])))
    neighbours = visited + steps[:, 0] * width + steps[:, 1]
    pending = np.zeros(len(origins), dtype=np.bool_)
    pending[visited] = neighbours > visited
    origins[visited] = neighbours
    return _resolve_chains(origins, pending)


def _resolve_chains(origins: Indices, pending: npt.NDArray[np.bool_]) -> Indices:
    """Resolve the *pending* origins in place: replace each by the origin of the pixel that it points to.

    All chains advance at once and every round doubles the hop, so the number of rounds grows with the logarithm of the
    longest chain.
    """
    open_ends = np.flatnonzero(pending)
    while open_ends.size:
        following = origins[open_ends]
        origins[open_ends], pending[open_ends] = origins[following], pending[following]
        open_ends = open_ends[pending[open_ends]]
    return origins


def motion_blur(images: Images, rngs: Generators, *, radius: float, sigma: float) -> Images:
    """Drag the image along a direction within 45 degrees of the horizontal."""
    angles = [rng.uniform(-45, 45) for rng in rngs]
    return to_uint8(drag(to_unit(images), angles, radius=int(radius), sigma=sigma))


def drag(images: Floats, angles: Sequence[float], *, radius: int, sigma: float) -> Floats:
    """Return (N, H, W, C) images, each dragged along its angle in degrees.

    A pixel becomes the mean of 2 * radius + 1 pixels on a ray from this pixel, with weights that fall off like half a
    Gaussian of *sigma* pixels. Positions are rounded to whole pixels, and the edge pixels repeat outside. This
    replaces ImageMagick's motion blur, which the generator scripts call, and was not compared with its output.
    """
    reach = 2 * radius
    padded = np.pad(images, ((0, 0), (reach, reach), (reach, reach), (0, 0)), mode="edge")
    return np.stack(
        [_drag_one(image, angle, reach=reach, sigma=sigma) for image, angle in zip(padded, angles, strict=True)]
    )


def _drag_one(padded: Floats, angle: float, *, reach: int, sigma: float) -> Floats:
    height, width = padded.shape[0] - 2 * reach, padded.shape[1] - 2 * reach
    distance = np.arange(reach + 1)
    weights = np.exp(-(distance**2) / (2 * sigma**2))
    rows = reach + np.rint(distance * math.sin(math.radians(angle))).astype(int)
    columns = reach + np.rint(distance * math.cos(math.radians(angle))).astype(int)
    total = np.zeros((height, width, padded.shape[2]), dtype=np.float32)
    for row, column, weight in zip(rows, columns, weights / weights.sum(), strict=True):
        total += np.float32(weight) * padded[row : row + height, column : column + width]
    return total


def zoom_blur(images: Images, *, stop: float, step: float) -> Images:
    """Average the image with enlargements of its centre, by factors from 1 up to but excluding *stop*."""
    unit = to_unit(images)
    factors = np.arange(1, stop, step)
    total = unit + sum(clipped_zoom(unit, factor) for factor in factors)
    return to_uint8(total / np.float32(len(factors) + 1))
