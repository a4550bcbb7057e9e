"""Tent: entropy minimisation at test time.

Wang et al. 2021, "Tent: Fully test-time adaptation by entropy minimization", sections 3.1 to 3.3: the entropy of the
prediction is the loss, weight and bias of the norm layers are the parameters, batch statistics normalise, and the
prediction is that of the forward pass before the update.
"""

import torch
from torch import nn

from tta_pipeline.adaptation.method import GradientMethod
from tta_pipeline.adaptation.norm_layers import affine_parameters, use_batch_statistics


class Tent(GradientMethod):
    """Adapts the affine parameters of all norm layers by the mean entropy of each batch."""

    def _select(self, model: nn.Module) -> list[nn.Parameter]:
        use_batch_statistics(model.eval())
        return affine_parameters(model, "tent")

    def _loss(self, images: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:  # noqa: ARG002 - others need them
        return entropy(logits).mean()


def entropy(logits: torch.Tensor) -> torch.Tensor:
    """Return the entropy in nats of the softmax of *logits* (B, K), shape (B,)."""
    log_probabilities = logits.log_softmax(1)
    return -(log_probabilities.exp() * log_probabilities).sum(1)
