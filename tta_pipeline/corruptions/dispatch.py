"""From the name of a corruption to the function that applies it."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from tta_pipeline.corruptions.arrays import Images
from tta_pipeline.corruptions.blur import defocus_blur, gaussian_blur, glass_blur, motion_blur, zoom_blur
from tta_pipeline.corruptions.constants import CONSTANTS, PARAMETERS
from tta_pipeline.corruptions.digital import (
    contrast,
    elastic_transform,
    jpeg_compression,
    pixelate,
    saturate,
)
from tta_pipeline.corruptions.noise import gaussian_noise, impulse_noise, shot_noise, speckle_noise
from tta_pipeline.corruptions.randomness import generators
from tta_pipeline.corruptions.spatter import spatter
from tta_pipeline.corruptions.weather import brightness, fog, frost, snow
from tta_pipeline.errors import SourceError
from tta_pipeline.partitions import CORRUPTIONS, SEVERITIES

TABLES = tuple(CONSTANTS)
"""Names of the tables of severity constants: for images of 224, 64 and 32 pixels."""

SMALLEST_SIDE = 16
PIXELS_AT_ONCE = 1 << 17
"""Pixels in a piece of a batch, approximately; working in pieces bounds memory and suits the processor's cache."""

DETERMINISTIC: Mapping[str, Callable[..., Images]] = {
    "defocus_blur": defocus_blur,
    "zoom_blur": zoom_blur,
    "brightness": brightness,
    "contrast": contrast,
    "pixelate": pixelate,
    "jpeg_compression": jpeg_compression,
    "gaussian_blur": gaussian_blur,
    "saturate": saturate,
}
"""Corruptions that only look at the image."""

RANDOM: Mapping[str, Callable[..., Images]] = {
    "gaussian_noise": gaussian_noise,
    "shot_noise": shot_noise,
    "impulse_noise": impulse_noise,
    "glass_blur": glass_blur,
    "motion_blur": motion_blur,
    "snow": snow,
    "frost": frost,
    "fog": fog,
    "elastic_transform": elastic_transform,
    "speckle_noise": speckle_noise,
    "spatter": spatter,
}
"""Corruptions that also take a generator per image."""


def corrupt(images: Images, corruption: str, severity: int, *, keys: Sequence[str], seed: int, table: str) -> Images:
    """Return corrupted copies of *images*.

    An image's result depends on itself, its key and the other arguments, never on the images around it: corrupting a
    batch and corrupting its images one by one give the same bytes.

    Args:
        images: (N, H, W, 3) uint8, RGB, with H and W at least 16.
        corruption: one of `tta_pipeline.partitions.CORRUPTIONS`.
        severity: 1 to 5.
        keys: one name per image, which seeds its randomness together with *seed*, *corruption* and *severity*.
        seed: another seed gives other randomness for the same keys. The numbers are those of this NumPy: a later
            release may draw others.
        table: which severity constants to use, one of `TABLES`; any table works at any image size.

    Raises:
        SourceError: an argument is not as described above.
    """
    _check(images, corruption, severity, keys=keys, table=table)
    arguments = dict(zip(PARAMETERS[corruption], CONSTANTS[table][corruption][severity - 1], strict=True))
    step = max(1, PIXELS_AT_ONCE // (images.shape[1] * images.shape[2]))
    corrupted = np.empty_like(images)
    for start in range(0, len(images), step):
        piece = slice(start, start + step)
        if corruption in DETERMINISTIC:
            corrupted[piece] = DETERMINISTIC[corruption](images[piece], **arguments)
        else:
            rngs = generators(keys[piece], seed=seed, corruption=corruption, severity=severity)
            corrupted[piece] = RANDOM[corruption](images[piece], rngs, **arguments)
    return corrupted


def _check(images: Images, corruption: str, severity: int, *, keys: Sequence[str], table: str) -> None:
    _check_choice("corruption", corruption, CORRUPTIONS)
    _check_choice("severity", severity, SEVERITIES)
    _check_choice("table", table, TABLES)
    if images.dtype != np.uint8 or images.ndim != 4 or images.shape[3] != 3 or min(images.shape[1:3]) < SMALLEST_SIDE:
        raise SourceError(
            f"images to corrupt have shape {images.shape} and type {images.dtype}; expected uint8 RGB of shape "
            f"(N, H, W, 3) with H and W at least {SMALLEST_SIDE}; convert them first"
        )
    if len(keys) != len(images):
        raise SourceError(f"{len(keys)} keys for {len(images)} images; expected one per image; pass the sample keys")


def _check_choice(kind: str, found: object, choices: tuple[object, ...]) -> None:
    if found not in choices:
        raise SourceError(f"{kind} {found!r} is unknown; expected one of {', '.join(map(str, choices))}; choose one")
