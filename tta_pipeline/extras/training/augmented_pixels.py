"""Augmented pixels of samples, from any source of their image files.

A sample's random numbers are a function of seed, epoch and key, so the order of the draws has no effect.
"""

import threading
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache, cached_property

import numpy as np
import numpy.typing as npt
import torch
from threadpoolctl import ThreadpoolController
from torch import nn
from torchvision.transforms import v2
from xxhash import xxh3_64_intdigest

from tta_pipeline.benchmarks.training_recipe import TrainingInputSettings
from tta_pipeline.domain.ordering import Indices
from tta_pipeline.extras.training.crops import NUM_DRAWS, crop_into
from tta_pipeline.extras.training.listed_files import ListedFiles
from tta_pipeline.loading.stored_pixels import StoredPixels

Hashes = npt.NDArray[np.uint64]

_STEP, _FIRST, _SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


@dataclass(frozen=True, kw_only=True)
class Augment:
    """Augmentation of the images of one epoch: a function of seed, epoch and the sample's key."""

    settings: TrainingInputSettings
    hashes: Hashes
    """Hash of the key of every sample, shape (N,)."""
    seed: int
    epoch: int

    def draws(self, indices: Indices) -> tuple[list[list[float]], list[int]]:
        """Return 23 random numbers in [0, 1) and a seed for torch, for each of the samples at *indices*."""
        numbers = draw_numbers(self.hashes[indices], seed=self.seed, epoch=self.epoch, count=NUM_DRAWS + 2)
        return as_uniform(numbers[:, :-1]).tolist(), numbers[:, -1].tolist()

    def apply(self, data: bytes, out: npt.NDArray[np.uint8], numbers: Sequence[float], torch_seed: int) -> None:
        """Write the augmented image of the file *data* into *out*, uint8 (S, S, 3).

        Args:
            data: Image file.
            out: Pixels, RGB.
            numbers: 23 random numbers in [0, 1) for the sample.
            torch_seed: Seed of the sample for operations that draw from torch's generator.

        Raises:
            ValueError: *data* is not an image, or is damaged.
        """
        kind = self.settings.augmentation
        is_mirrored = self.settings.flip and kind != "none" and numbers[-1] < 0.5
        crop_into(data, out, kind, numbers[:-1], is_mirrored=is_mirrored)
        if self._operation is not None:
            with torch.random.fork_rng(devices=()):
                torch.default_generator.manual_seed(torch_seed)
                changed = self._operation(torch.from_numpy(out).permute(2, 0, 1))
            out[...] = changed.permute(1, 2, 0).numpy()

    @cached_property
    def _operation(self) -> nn.Module | None:
        operation: nn.Module | None = None
        if (rand := self.settings.randaugment) is not None:
            operation = v2.RandAugment(num_ops=rand.num_ops, magnitude=rand.magnitude)
        if (mix := self.settings.augmix) is not None:
            operation = v2.AugMix(severity=mix.severity, mixture_width=mix.width)
        return operation


class AugmentedPixels:
    """Provides the augmented pixels of samples; several threads may use it at the same time."""

    def __init__(self, files: StoredPixels | ListedFiles, augment: Augment) -> None:
        self._files = files
        self._augment = augment
        self._limited = threading.local()

    def open(self, stack: ExitStack) -> None:
        """Open the files until *stack* closes."""
        self._files.open(stack)

    def expect(self, indices: Indices) -> None:
        """Let files be read ahead in the order of *indices*."""
        self._files.expect(indices)

    def fill(self, indices: Indices, out: npt.NDArray[np.uint8]) -> None:
        """Read, decode and augment the samples at *indices* into *out*, uint8 (B, S, S, 3)."""
        self._limit_to_one_core()
        drawn, files = zip(*self._augment.draws(indices), strict=True), self._files.read_files(indices)
        for index, data, image, own in zip(indices.tolist(), files, out, drawn, strict=True):
            try:
                self._augment.apply(data, image, *own)
            except ValueError as error:
                raise self._files.unreadable_error(index, str(error)) from error

    def require_unchanged(self) -> None:
        """Make sure that the files did not change while they were read."""
        self._files.require_unchanged()

    def _limit_to_one_core(self) -> None:
        """Limit torch to one core in a decoding thread, since other threads decode too, or compute."""
        if threading.current_thread() is not threading.main_thread() and not hasattr(self._limited, "done"):
            torch.get_num_threads()  # the first call in a thread sets its number of cores, so it must come first
            _controller().limit(limits=1, user_api="openmp")
            self._limited.done = True


@cache
def _controller() -> ThreadpoolController:
    return ThreadpoolController()


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
