"""RPL: robust pseudo-labels.

Rusak et al. 2022, "If your data distribution shifts, use self-learning": as Tent, but the loss is the generalised
cross entropy of the model's own hard label, (1 - p^q) / q with q = 0.8.
"""

from typing import Any

import torch
from torch import nn

from tta_pipeline.methods.catalogue import RplHyperparameters
from tta_pipeline.methods.losses import generalized_cross_entropy
from tta_pipeline.methods.method import GradientMethod


class Rpl(GradientMethod):
    """Adapts the affine parameters of all norm layers by the generalised cross entropy of the predicted label."""

    name = "rpl"

    def __init__(self, model: nn.Module, hyperparameters: RplHyperparameters, **kwargs: Any) -> None:
        super().__init__(model, hyperparameters, **kwargs)
        self._q = hyperparameters.q

    def _loss(self, logits: torch.Tensor) -> torch.Tensor:
        return generalized_cross_entropy(logits, logits.argmax(1), q=self._q).mean()
