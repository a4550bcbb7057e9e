"""What a method may give besides logits. The evaluation asks for it; no method has to give any.

They are not part of `Method`, so that a method that gives none of them does not know them.
"""

from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    import torch


@runtime_checkable
class HasConfidence(Protocol):
    """A method that says by its own score how sure it is that an image belongs to a known class."""

    def confidence(self, logits: "torch.Tensor") -> "torch.Tensor":
        """Return the score, (B,), of the images with *logits*, (B, K): the higher, the surer. It changes nothing."""


@runtime_checkable
class HasSourceLogits(Protocol):
    """A method that computes the source model's logits for each batch anyway."""

    def source_logits(self) -> "torch.Tensor":
        """Return the source model's logits (B, K) for the images of the last `predict`."""
