"""Random numbers for single samples: functions of seed, epoch and key, so the order of the draws has no effect."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from xxhash import xxh3_64_intdigest

Hashes = npt.NDArray[np.uint64]

_STEP, _FIRST, _SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


def key_hashes(keys: Sequence[str]) -> Hashes:
    """Return a hash of each key, shape (N,)."""
    # A file's name need not be UTF-8.
    encoded = (key.encode("utf-8", "surrogateescape") for key in keys)
    return np.fromiter((xxh3_64_intdigest(key) for key in encoded), np.uint64, len(keys))


def draw_numbers(hashes: Hashes, *, seed: int, epoch: int, count: int) -> Hashes:
    """Return *count* random numbers for each sample, uint64 (B, *count*).

    They are the output of the generator SplitMix64 (Steele, Lea and Flood 2014, "Fast splittable pseudorandom number
    generators", figure 15), started from a state for each sample. A generator object for each sample would take longer
    than decoding a small image.
    """
    (start,) = np.random.SeedSequence([seed, epoch]).generate_state(1, np.uint64)
    steps = np.arange(1, count + 1, dtype=np.uint64) * np.uint64(_STEP)
    # The key is mixed before the epoch enters, so that neighbouring epochs do not yield overlapping sequences.
    numbers = _mix(_mix(hashes) ^ start)[:, None] + steps
    return _mix(numbers)


def as_uniform(numbers: Hashes) -> npt.NDArray[np.float64]:
    """Convert the upper 53 bits of *numbers* into floats in [0, 1)."""
    uniform: npt.NDArray[np.float64] = (numbers >> np.uint64(11)).astype(np.float64) * 2.0**-53
    return uniform


def _mix(numbers: Hashes) -> Hashes:
    numbers = (numbers ^ (numbers >> np.uint64(30))) * np.uint64(_FIRST)
    numbers = (numbers ^ (numbers >> np.uint64(27))) * np.uint64(_SECOND)
    return numbers ^ (numbers >> np.uint64(31))
