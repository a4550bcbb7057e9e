"""Randomness per image: it depends on the image's key, not on the batch, the position or the thread."""

import hashlib
from collections.abc import Callable, Sequence
from typing import TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

T = TypeVar("T", bound=np.generic)
Generators: TypeAlias = Sequence[np.random.Generator]
"""One generator per image of a batch, in the order of the batch."""


def generators(keys: Sequence[str], *, seed: int, corruption: str, severity: int) -> Generators:
    """Return one fresh generator per key.

    The seed is a BLAKE2b hash of all four arguments; Python's own `hash` differs between processes.
    """
    return [_generator(f"{seed}|{corruption}|{severity}|{key}") for key in keys]


def _generator(name: str) -> np.random.Generator:
    digest = hashlib.blake2b(name.encode(), digest_size=16).digest()
    return np.random.Generator(np.random.PCG64(int.from_bytes(digest)))


def per_image(rngs: Generators, draw: Callable[[np.random.Generator], npt.NDArray[T]]) -> npt.NDArray[T]:
    """Return the draws from every generator, stacked along a new first axis."""
    return np.stack([draw(rng) for rng in rngs])


def normal(rngs: Generators, shape: tuple[int, ...], *, mean: float = 0, scale: float) -> npt.NDArray[np.float32]:
    """Return (N, *shape) normal numbers."""
    numbers = per_image(rngs, lambda rng: rng.standard_normal(shape, dtype=np.float32))
    return numbers * np.float32(scale) + np.float32(mean)


def uniform(rngs: Generators, shape: tuple[int, ...]) -> npt.NDArray[np.float32]:
    """Return (N, *shape) numbers in [-1, 1)."""
    return per_image(rngs, lambda rng: rng.random(shape, dtype=np.float32)) * np.float32(2) - np.float32(1)
