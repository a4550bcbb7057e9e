"""Frost textures: ice crystals grown from noise.

The generator scripts paste photographs from the web, which this project may not redistribute. These textures only share
the photographs' mean colour and contrast and have crystals of similar size, so frost is the corruption that differs
most from the published images.
"""

from dataclasses import dataclass
from functools import cache
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
from scipy import fft, ndimage

from tta_pipeline.data.corruptions.arrays import Floats

Field: TypeAlias = npt.NDArray[np.float64]
"""Array of shape (SIZE, SIZE), repeating without a seam in both directions."""

Spectrum: TypeAlias = npt.NDArray[np.complex128]

SIZE = 384
DIRECTIONS = 8


@dataclass(frozen=True, kw_only=True, slots=True)
class Ice:
    """Look of one texture: colour (RGB) and contrast on the scale 0 to 255, lengths in pixels."""

    colour: tuple[float, float, float]
    contrast: float
    needle_length: float
    needle_width: float
    patch_size: float
    clouds: float
    """Contrast of large bright and dark regions, relative to 1 for the crystals."""


ICE_TEXTURES: tuple[Ice, ...] = (
    Ice(colour=(78, 149, 166), contrast=19, needle_length=5, needle_width=0.8, patch_size=9, clouds=1.2),
    Ice(colour=(201, 205, 215), contrast=22, needle_length=12, needle_width=0.9, patch_size=9, clouds=0.5),
    Ice(colour=(201, 205, 215), contrast=22, needle_length=9, needle_width=0.8, patch_size=7, clouds=0.5),
    Ice(colour=(138, 153, 165), contrast=29, needle_length=3, needle_width=0.8, patch_size=4, clouds=0.4),
    Ice(colour=(112, 123, 135), contrast=43, needle_length=7, needle_width=0.7, patch_size=8, clouds=0.7),
)
"""Colours and contrasts measured on the photographs frost1 to frost5; the second and third are the same picture."""


@cache
def frost_textures(scale: float) -> tuple[Floats, ...]:
    """Return five seamless (S, S, 3) textures in [0, 1], where S is 384 * *scale*."""
    return tuple(_shrink(_texture(ice, seed=seed), scale) for seed, ice in enumerate(ICE_TEXTURES))


def _shrink(texture: Floats, scale: float) -> Floats:
    # Without prior smoothing, as upstream: small textures keep the sparkle of large ones.
    return ndimage.zoom(texture, (scale, scale, 1), order=1, mode="grid-wrap", grid_mode=True)


@cache
def _texture(ice: Ice, *, seed: int) -> Floats:
    rng = np.random.default_rng(seed)
    clouds = _standardise(_stretch(_spectrum(rng), 0, along=SIZE / 12, across=SIZE / 12))
    relief = _standardise(_crystals(ice, rng) + ice.clouds * clouds)
    pixels = np.array(ice.colour) + ice.contrast * relief[..., np.newaxis]
    return (np.clip(pixels, 0, 255) / 255).astype(np.float32)


def _crystals(ice: Ice, rng: np.random.Generator) -> Field:
    """Cover the pane with patches of needles; within a patch, all needles point the same way."""
    # After cubing, a few sparks are much brighter than the others, and each of these becomes a needle.
    sparks = _spectrum(rng, power=3)
    crystals = np.zeros((SIZE, SIZE))
    highest = np.full((SIZE, SIZE), -np.inf)
    for angle in np.pi * np.arange(DIRECTIONS) / DIRECTIONS:
        # All claims have the same expected spread, and so do all needles, so they can be compared as they are.
        claim = _stretch(_spectrum(rng), 0, along=ice.patch_size, across=ice.patch_size)
        needles = _stretch(sparks, angle, along=ice.needle_length, across=ice.needle_width)
        crystals = np.where(claim > highest, needles, crystals)
        highest = np.maximum(claim, highest)
    return _standardise(crystals)


def _spectrum(rng: np.random.Generator, *, power: int = 1) -> Spectrum:
    """Return the Fourier transform of a pane of normal noise whose values are raised to *power*."""
    return fft.rfft2(rng.standard_normal((SIZE, SIZE)) ** power)


def _stretch(spectrum: Spectrum, angle: float, *, along: float, across: float) -> Field:
    """Smooth a pane with a Gaussian of *along* pixels in the direction of *angle*, *across* pixels at right angles."""
    down, right = 2 * np.pi * fft.fftfreq(SIZE)[:, np.newaxis], 2 * np.pi * fft.rfftfreq(SIZE)
    ahead, aside = np.cos(angle) * right + np.sin(angle) * down, np.cos(angle) * down - np.sin(angle) * right
    field: Field = fft.irfft2(spectrum * np.exp(-((along * ahead) ** 2 + (across * aside) ** 2) / 2))
    return field


def _standardise(field: Field) -> Field:
    standardised: Field = (field - field.mean()) / field.std()
    return standardised
