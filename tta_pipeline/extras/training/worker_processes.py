"""Batches read by torch's worker processes: for augmentations of torchvision that draw at random, and loose files."""

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from tta_pipeline.domain.ordering import Indices
from tta_pipeline.loading.stored_pixels import Pixels


class _Batches(Dataset[torch.Tensor]):
    """Whole batches of pixels; each process makes and opens their source itself, since it may have locks and files."""

    def __init__(self, make_pixels: Callable[[], Pixels], image_size: int) -> None:
        self._make_pixels = make_pixels
        self._image_size = image_size
        self._pixels: Pixels | None = None
        self.files = ExitStack()

    def __getitems__(self, indices: list[int]) -> torch.Tensor:
        """Return the images of the samples at *indices*, uint8 (B, S, S, 3)."""
        if self._pixels is None:
            self._pixels = self._make_pixels()
            self._pixels.open(self.files)
        images = torch.empty((len(indices), self._image_size, self._image_size, 3), dtype=torch.uint8)
        self._pixels.fill(np.array(indices), images.numpy())
        return images


def read_by_processes(
    make_pixels: Callable[[], Pixels],
    parts: Sequence[Indices],
    *,
    image_size: int,
    num_workers: int,
    pin_memory: bool,
) -> Iterator[torch.Tensor]:
    """Yield the images of the samples of each of *parts*, uint8 (B, S, S, 3).

    Args:
        make_pixels: Returns the source of the pixels. It is called in every process, and pickled for those of a run
            that Dagster's web server or daemon starts: these begin their processes anew, by `spawn`.
        parts: Samples of each batch.
        image_size: Height and width of the images in pixels.
        num_workers: Number of processes; 0: the consumer reads.
        pin_memory: Whether batches lie in pinned memory, from which a CUDA device copies asynchronously.
    """
    batches: Any = _Batches(make_pixels, image_size)
    loader = DataLoader(
        batches,
        batch_sampler=[part.tolist() for part in parts],
        num_workers=num_workers,
        collate_fn=_identity,
        pin_memory=pin_memory,
        generator=torch.Generator(),  # else it draws from the global one, so the loader would affect the weights
    )
    with batches.files:
        yield from iterate(loader)


def iterate(loader: DataLoader[Any]) -> Generator[Any]:
    """Yield what *loader* gives; its worker processes end with the iteration, also after an error."""
    found = iter(loader)
    try:
        yield from found
    finally:
        # Otherwise a garbage collection long after an error ends them, and torch then waits 5 s for each.
        if loader.num_workers:
            found._shutdown_workers()  # type: ignore[attr-defined]  # noqa: SLF001 - torch has no public function


def _identity(images: Any) -> Any:
    return images
