"""Noise: every pixel value of every channel is disturbed independently."""

import numpy as np

from tta_pipeline.data.corruptions.arrays import Images, to_uint8, to_unit
from tta_pipeline.data.corruptions.randomness import Generators, normal, per_image


def gaussian_noise(images: Images, rngs: Generators, *, scale: float) -> Images:
    """Add normal noise of standard deviation *scale*, in units of the value range."""
    return to_uint8(to_unit(images) + normal(rngs, images.shape[1:], scale=scale))


def shot_noise(images: Images, rngs: Generators, *, photons: float) -> Images:
    """Count photons: a white pixel receives *photons* on average."""
    expected = images * (photons / 255)
    counts = np.stack([rng.poisson(image) for rng, image in zip(rngs, expected, strict=True)])
    return to_uint8(counts.astype(np.float32) / np.float32(photons))


def impulse_noise(images: Images, rngs: Generators, *, amount: float) -> Images:
    """Replace a fraction *amount* of the values, half by 0 (pepper) and half by 255 (salt)."""
    chance = per_image(rngs, lambda rng: rng.random(images.shape[1:], dtype=np.float32))
    return np.where(chance < amount / 2, np.uint8(0), np.where(chance >= 1 - amount / 2, np.uint8(255), images))


def speckle_noise(images: Images, rngs: Generators, *, scale: float) -> Images:
    """Add normal noise in proportion to each value."""
    return to_uint8(to_unit(images) * (1 + normal(rngs, images.shape[1:], scale=scale)))
