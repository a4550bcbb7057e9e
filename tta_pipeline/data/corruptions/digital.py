"""Digital: distortions of contrast, colour, shape and resolution by cameras, screens and file formats."""

from io import BytesIO

import numpy as np
from PIL import Image

from tta_pipeline.data.corruptions.arrays import Floats, Images, smooth, to_uint8, to_unit
from tta_pipeline.data.corruptions.geometry import mirror, reflect, sample
from tta_pipeline.data.corruptions.randomness import Generators, uniform


def contrast(images: Images, *, factor: float) -> Images:
    """Move every value towards the mean of its channel in its image."""
    # The mean of whole numbers is exact in float64, so no order of summation can change it.
    means = (images.mean(axis=(1, 2), keepdims=True, dtype=np.float64) / 255).astype(np.float32)
    return to_uint8(means + np.float32(factor) * (to_unit(images) - means))


def saturate(images: Images, *, factor: float, shift: float) -> Images:
    """Multiply the HSV saturation by *factor* and add *shift*; hue and value stay the same.

    Greys have no hue. As in the generator scripts they count as red, so a *shift* tints them.
    """
    unit = to_unit(images)
    value = unit.max(axis=-1, keepdims=True)
    distance = value - unit
    chroma = distance.max(axis=-1, keepdims=True)
    grey = chroma == 0
    depth = np.where(grey, np.array([0, 1, 1], dtype=np.float32), distance / np.where(grey, np.float32(1), chroma))
    saturation = chroma / np.where(value > 0, value, np.float32(1))
    return to_uint8(value * (1 - depth * np.clip(saturation * factor + shift, 0, 1)))


def jpeg_compression(images: Images, *, quality: float) -> Images:
    """Encode as a baseline JPEG file of the given quality, and decode the file."""
    return np.stack([_jpeg_round_trip(image, quality=int(quality)) for image in images])


def _jpeg_round_trip(image: Images, *, quality: int) -> Images:
    file = BytesIO()
    Image.fromarray(image).save(file, "JPEG", quality=quality)
    return np.asarray(Image.open(file))


def pixelate(images: Images, *, factor: float) -> Images:
    """Shrink to *factor* of the size and enlarge again, both with a box filter."""
    return np.stack([_pixelate_one(image, factor=factor) for image in images])


def _pixelate_one(image: Images, *, factor: float) -> Images:
    height, width = image.shape[:2]
    small = Image.fromarray(image).resize((int(width * factor), int(height * factor)), Image.Resampling.BOX)
    return np.asarray(small.resize((width, height), Image.Resampling.BOX))


def elastic_transform(images: Images, rngs: Generators, *, amplitude: float, sigma: float, affine: float) -> Images:
    """Distort an image by a random affine map, then by a smooth random displacement of every pixel.

    *affine* is the largest distance in pixels by which each of three anchor points moves. The displacement is uniform
    noise, smoothed with a Gaussian of *sigma* pixels, times *amplitude*.
    """
    size = images.shape[1:3]
    grid = np.indices(size, dtype=np.float32)
    skewed = sample(to_unit(images), _affine_positions(grid, rngs, affine=affine), fold=mirror)
    noise = uniform(rngs, (2, *size)).reshape(-1, *size)
    shifts = np.float32(amplitude) * smooth(noise, sigma, mode="reflect", truncate=3).reshape(-1, 2, *size)
    return to_uint8(sample(skewed, grid + shifts, fold=reflect))


def _affine_positions(grid: Floats, rngs: Generators, *, affine: float) -> Floats:
    """Return where in its image each pixel of the (2, H, W) *grid* comes from, as (N, 2, H, W) rows and columns."""
    height, width = grid.shape[1:]
    arm = min(height, width) // 3
    anchors = np.array([height // 2, width // 2]) + arm * np.array([[1, 1], [-1, 1], [-1, -1]])
    moved = anchors + affine * uniform(rngs, anchors.shape)
    homogeneous = np.concatenate([moved, np.ones_like(moved[..., :1])], axis=-1)
    # Rows of the solution: the contributions of a step down, a step right and the origin to a pixel's source position.
    down, right, origin = np.moveaxis(np.linalg.solve(homogeneous, anchors[np.newaxis]), 1, 0)[..., None, None]
    positions: Floats = (down * grid[0] + right * grid[1] + origin).astype(np.float32)
    return positions
