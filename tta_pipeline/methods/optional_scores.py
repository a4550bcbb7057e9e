"""Scores that a method may return besides logits. The evaluation reads them if they exist.

They are not part of `Method`, so a method without them needs no code for them.
"""

from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    import torch


@runtime_checkable
class HasConfidence(Protocol):
    """A method with its own score of how confident it is that an image belongs to a known class."""

    def confidence(self, logits: "torch.Tensor") -> "torch.Tensor":
        """Return the score, (B,), of the images with *logits*, (B, K): higher is more confident. No state changes."""


@runtime_checkable
class HasSourceLogits(Protocol):
    """A method that computes the source model's logits for each batch anyway."""

    def source_logits(self) -> "torch.Tensor":
        """Return the source model's logits (B, K) for the images of the last `predict`."""
