"""Weather: snow, frost, fog and bright light."""

import numpy as np

from tta_pipeline.data.corruptions.arrays import Floats, Images, luma, to_uint8, to_unit
from tta_pipeline.data.corruptions.blur import drag
from tta_pipeline.data.corruptions.frost import frost_textures
from tta_pipeline.data.corruptions.geometry import clipped_zoom
from tta_pipeline.data.corruptions.randomness import Generators, normal, uniform


def snow(
    images: Images,
    rngs: Generators,
    *,
    mean: float,
    scale: float,
    zoom: float,
    threshold: float,
    radius: float,
    sigma: float,
    keep: float,
) -> Images:
    """Let flakes fall in two directions over a mix of the image (share *keep*) and its bleached copy.

    As in the generator scripts, the flakes are 8-bit images before and after the motion blur.
    """
    flakes = clipped_zoom(normal(rngs, images.shape[1:3], mean=mean, scale=scale), zoom)[..., np.newaxis]
    flakes = np.where(flakes < threshold, np.float32(0), flakes)
    angles = [rng.uniform(-135, -45) for rng in rngs]
    dragged = drag(to_unit(to_uint8(flakes)), angles, radius=int(radius), sigma=sigma)
    flakes = to_unit(to_uint8(dragged + np.float32(0.5 / 255)))  # to_uint8 truncates; ImageMagick rounds
    unit = to_unit(images)
    bleached = np.maximum(unit, luma(unit) * 1.5 + 0.5)
    return to_uint8(keep * unit + (1 - keep) * bleached + flakes + flakes[:, ::-1, ::-1])


def frost(
    images: Images, rngs: Generators, *, image_weight: float, frost_weight: float, texture_scale: float
) -> Images:
    """Add a random crop of one of five frost textures."""
    textures = frost_textures(texture_scale)
    ice = np.stack([_random_crop(textures, rng, images.shape[1:3]) for rng in rngs])
    return to_uint8(image_weight * to_unit(images) + frost_weight * ice)


def _random_crop(textures: tuple[Floats, ...], rng: np.random.Generator, size: tuple[int, int]) -> Floats:
    texture = textures[rng.integers(len(textures))]
    top, left = rng.integers(len(texture), size=2)
    rows, columns = (top + np.arange(size[0])) % len(texture), (left + np.arange(size[1])) % len(texture)
    return texture[np.ix_(rows, columns)]


def fog(images: Images, rngs: Generators, *, thickness: float, decay: float) -> Images:
    """Add a plasma cloud, then scale so that no value exceeds the brightest value of the original image."""
    height, width = images.shape[1:3]
    clouds = plasma_fractal(rngs, size=1 << (max(height, width) - 1).bit_length(), decay=decay)
    unit = to_unit(images)
    brightest = unit.max(axis=(1, 2, 3), keepdims=True)
    foggy = unit + thickness * clouds[:, :height, :width, np.newaxis]
    return to_uint8(foggy * (brightest / (brightest + thickness)))


def brightness(images: Images, *, shift: float) -> Images:
    """Raise the HSV value by *shift*; hue and saturation stay the same."""
    unit = to_unit(images)
    value = unit.max(axis=-1, keepdims=True)
    brighter = np.minimum(value + np.float32(shift), np.float32(1))
    # Red, green and blue are proportional to the HSV value; black has no hue and turns grey.
    scaled = unit * np.divide(brighter, value, out=np.zeros_like(value), where=value > 0)
    return to_uint8(np.where(value > 0, scaled, brighter))


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
