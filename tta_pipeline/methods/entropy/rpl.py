"""RPL: robust pseudo-labels.

Rusak et al. 2022, "If your data distribution shifts, use self-learning": Tent with another loss, the generalised cross
entropy (1 - p^q) / q of the model's own hard label, where p is the label's probability and q = 0.8.
"""

from typing import Any

import torch
from torch import nn

from tta_pipeline.methods.entropy.entries import RplHyperparameters
from tta_pipeline.methods.gradient_method import GradientMethod
from tta_pipeline.methods.losses import generalized_cross_entropy


class Rpl(GradientMethod):
    """Minimises the generalised cross entropy of the predicted label over the affine parameters of all norm layers."""

    name = "rpl"

    def __init__(self, model: nn.Module, hyperparameters: RplHyperparameters, **kwargs: Any) -> None:
        super().__init__(model, hyperparameters, **kwargs)
        self._q = hyperparameters.q

    def _loss(self, logits: torch.Tensor) -> torch.Tensor:
        return generalized_cross_entropy(logits, logits.argmax(1), q=self._q).mean()
