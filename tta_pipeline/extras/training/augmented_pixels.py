"""Augmented pixels of samples, from any source of their image files."""

import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from threadpoolctl import ThreadpoolController
from torch import nn
from torchvision.transforms import v2

from tta_pipeline.benchmarks.training_input import TrainingInputSettings
from tta_pipeline.domain.ordering import Indices
from tta_pipeline.errors import StreamError
from tta_pipeline.extras.training.crops import NUM_DRAWS, crop_into
from tta_pipeline.extras.training.random_draws import Hashes, as_uniform, draw_numbers
from tta_pipeline.loading.stored_pixels import Samples


class ImageFiles(Samples, Protocol):
    """Provides the image files of samples, each compared with the manifest."""

    def read_files(self, indices: Indices) -> Iterator[bytes]:
        """Yield the files of the samples at *indices*, shape (B,)."""
        ...

    def unreadable_error(self, index: int, found: str) -> StreamError:
        """Return an error: *found* is in place of the sample at *index*."""
        ...


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

    def __init__(self, files: ImageFiles, augment: Augment) -> None:
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
