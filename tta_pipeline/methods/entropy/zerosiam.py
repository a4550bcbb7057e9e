"""ZeroSiam: entropy minimisation through a learned predictor, kept in agreement with the prediction without it.

Chen et al. 2026, "ZeroSiam: An efficient asymmetry for test-time entropy optimization without collapse". The features,
the inputs of the classifier, take two branches. The target branch is the classifier alone, and gives logits z. The
online branch puts a linear predictor, without bias and starting as the identity, before the classifier, and gives
logits z'. The loss is the entropy of z' plus the divergences KL(z || z') + KL(z' || z), where z has no gradient. The
predictor absorbs shortcuts, such as one class for everything. The prediction is z, from before the update, and does
not use the predictor.

The norm layers adapt with the learning rate `lr`, the predictor with `predictor_lr_factor` times `lr`. One pass through
the network serves both branches. Learning rates are the authors' for a ViT-B and for a ResNet-50 with group norm.
"""

from typing import Any

import torch
from torch import nn

from tta_pipeline.methods.entropy.entries import ZeroSiamHyperparameters
from tta_pipeline.methods.entropy.predictor import Predictor
from tta_pipeline.methods.gradient_method import GradientMethod
from tta_pipeline.methods.losses import symmetric_cross_entropy


class ZeroSiam(GradientMethod):
    """Trains the affine parameters of all norm layers, and a predictor between features and classifier."""

    name = "zerosiam"
    state_attrs = ("_predictor",)

    def __init__(self, model: nn.Module, hyperparameters: ZeroSiamHyperparameters, **kwargs: Any) -> None:
        super().__init__(model, hyperparameters, **kwargs)
        self._predictor = Predictor(
            self.model,
            self._optimizer,
            num_classes=self.num_classes,
            lr=hyperparameters.predictor_lr_factor * hyperparameters.lr,
            method=self.name,
        )

    def _adapt(self, images: torch.Tensor) -> torch.Tensor:
        logits = self._forward(images)
        self._step(self._asymmetric_loss(self._predictor.logits(), logits.detach()), num_samples=len(images))
        return logits

    def _asymmetric_loss(self, online: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """Return the loss of the logits of both branches, (B, K); *target* has no gradient."""
        # Each divergence is a cross entropy minus an entropy. The entropy of the online branch is in the loss once with
        # each sign, and the entropy of the target has no gradient, so twice the symmetric cross entropy is left.
        return 2 * symmetric_cross_entropy(online, target).mean()
