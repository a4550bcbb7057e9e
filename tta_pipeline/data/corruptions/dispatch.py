"""Corrupting a batch of images by the name of a corruption."""

from collections.abc import Callable, Mapping, Sequence
from inspect import signature
from typing import Any

import numpy as np

from tta_pipeline.data.corruptions import blur, digital, noise, spatter, weather
from tta_pipeline.data.corruptions.arrays import Images
from tta_pipeline.data.corruptions.constants import CONSTANTS, PARAMETERS, SEVERITIES
from tta_pipeline.data.corruptions.randomness import generators
from tta_pipeline.errors import ImagesError
from tta_pipeline.util.nearest_names import name_choices

TABLES = tuple(CONSTANTS)
"""Names of the tables of severity constants: for images of 224, 64 and 32 pixels."""

SMALLEST_SIDE = 16
PIXELS_AT_ONCE = 1 << 17
"""Approximate number of pixels in a piece of a batch; pieces bound memory and fit the processor's cache."""
_FAMILIES = (noise, blur, weather, digital, spatter)


def _function(corruption: str) -> Callable[..., Images]:
    """Return the function named *corruption* from its family's module."""
    (function,) = (vars(family)[corruption] for family in _FAMILIES if callable(vars(family).get(corruption)))
    return function  # type: ignore[no-any-return] # a module's attributes have no types


FUNCTIONS: Mapping[str, Callable[..., Images]] = {corruption: _function(corruption) for corruption in PARAMETERS}
"""Function of each corruption with constants, by the corruption's name."""


def is_random(corruption: str) -> bool:
    """Return whether *corruption* draws random numbers, from one generator per image."""
    return "rngs" in signature(FUNCTIONS[corruption]).parameters


def corrupt(images: Images, corruption: str, severity: int, *, keys: Sequence[str], seed: int, table: str) -> Images:
    """Return corrupted copies of *images*.

    The result of an image depends on the image, its key and the other arguments, never on the other images: corrupting
    a batch and corrupting its images one by one give the same bytes.

    Args:
        images: (N, H, W, 3) uint8, RGB, with H and W at least 16.
        corruption: one of `FUNCTIONS`.
        severity: 1 to 5.
        keys: one name per image, which seeds its randomness together with *seed*, *corruption* and *severity*.
        seed: another seed gives other randomness for the same keys. A later release of NumPy may draw other numbers
            from the same seed.
        table: the severity constants, one of `TABLES`; any table works at any image size.
    """
    _check(images, corruption, severity, keys=keys, table=table)
    arguments: dict[str, Any] = dict(
        zip(PARAMETERS[corruption], CONSTANTS[table][corruption][severity - 1], strict=True)
    )
    step = max(1, PIXELS_AT_ONCE // (images.shape[1] * images.shape[2]))
    corrupted = np.empty_like(images)
    takes_generators = is_random(corruption)
    for start in range(0, len(images), step):
        piece = slice(start, start + step)
        if takes_generators:
            arguments["rngs"] = generators(keys[piece], seed=seed, corruption=corruption, severity=severity)
        corrupted[piece] = FUNCTIONS[corruption](images[piece], **arguments)
    return corrupted


def _check(images: Images, corruption: str, severity: int, *, keys: Sequence[str], table: str) -> None:
    _check_choice("corruption", corruption, tuple(FUNCTIONS))
    _check_choice("severity", severity, SEVERITIES)
    _check_choice("table", table, TABLES)
    if images.dtype != np.uint8 or images.ndim != 4 or images.shape[3] != 3 or min(images.shape[1:3]) < SMALLEST_SIDE:
        raise ImagesError(
            f"Images to corrupt have shape {images.shape} and dtype {images.dtype}; expected uint8 RGB of shape (N, "
            f"H, W, 3) with H and W at least {SMALLEST_SIDE}: convert them first"
        )
    if len(keys) != len(images):
        raise ImagesError(
            f"There are {len(keys)} keys for {len(images)} images; expected one key per image: pass the sample keys"
        )


def _check_choice(kind: str, found: object, choices: tuple[object, ...]) -> None:
    if found not in choices:
        known = name_choices(found, choices, listed_in="tta_pipeline/data/corruptions/constants.py")
        raise ImagesError(f"{kind} {found!r} is unknown; expected one of {known}: choose one")
