"""A cache of a few images of each class, with fixed places on the device."""

import math
from collections.abc import Sequence

import torch

from tta_pipeline.methods.stateful import Stateful


class ImageCache(Stateful):
    """The images of lowest rank in each class, such as the most confident; free places have infinite rank.

    Args:
        num_classes: Number K of classes.
        size: Number M of places of each class.
        widths: Width of each value that is kept of an image; the first is the width D of its feature.
        device: Device of the values.
    """

    state_attrs = ("ranks", "values")

    def __init__(self, num_classes: int, size: int, *, widths: Sequence[int], device: torch.device) -> None:
        self.ranks = torch.full((num_classes, size), math.inf, device=device)
        self.values = [torch.zeros(num_classes, size, width, device=device) for width in widths]

    @property
    def features(self) -> torch.Tensor:
        """Features of the images, (K, M, D); zero in free places."""
        return self.values[0]

    @property
    def is_kept(self) -> torch.Tensor:
        """Whether there is an image in each place, (K, M)."""
        return self.ranks.isfinite()

    def enter(self, label: torch.Tensor, rank: torch.Tensor, *values: torch.Tensor) -> None:
        """Replace the image of highest rank in its class if the new image has a lower one; the host never waits.

        Args:
            label: Class of the new image, a scalar.
            rank: Rank of the new image, a scalar; an image of infinite rank never enters.
            values: What is kept of the new image, one row for each of the `values`.
        """
        index = label.view(1)
        of_class = self.ranks.index_select(0, index).squeeze(0)
        is_replaced = (torch.arange(len(of_class), device=of_class.device) == of_class.argmax()) & (rank < of_class)
        self.ranks.index_copy_(0, index, rank.where(is_replaced, of_class).unsqueeze(0))
        for kept, value in zip(self.values, values, strict=True):
            rows = kept.index_select(0, index).squeeze(0)
            kept.index_copy_(0, index, value.where(is_replaced.unsqueeze(1), rows).unsqueeze(0))

    def affinity(self, feature: torch.Tensor, beta: float) -> torch.Tensor:
        """Return exp(-beta (1 - cosine)) of each image with *feature* (D,), shape (K, M); 0 for free places."""
        return (-beta * (1 - self.features @ feature)).exp().where(self.is_kept, 0.0)

    def with_free_places(self, count: int) -> "ImageCache":
        """Return a copy with *count* more places in each class."""
        widths = [kept.shape[2] for kept in self.values]
        more = ImageCache(len(self.ranks), count, widths=widths, device=self.ranks.device)
        more.ranks = torch.cat([self.ranks, more.ranks], 1)
        more.values = [torch.cat([kept, free], 1) for kept, free in zip(self.values, more.values, strict=True)]
        return more
