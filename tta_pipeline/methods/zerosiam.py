"""ZeroSiam: entropy of what a learned predictor makes of the features, which may not leave what they were.

Chen et al. 2026, "ZeroSiam: An efficient asymmetry for test-time entropy optimization without collapse": the features,
the inputs of the classifier, go to it twice. The target branch gives logits z, the online branch, through a linear
predictor without bias that starts as the identity, logits z'. The loss is the entropy of z' plus the divergences
KL(z || z') + KL(z' || z), in both of which z is a constant. Shortcuts, such as one class for everything, are absorbed
by the predictor, which the prediction does not use: it is z, from before the update.

The norm layers adapt with the rate `lr`, the predictor with `predictor_lr_factor` times as much. One pass through the
network serves both branches. Rates are the authors' for a ViT-B and for a ResNet-50 with group norm.
"""

from typing import Any

import torch
from torch import nn

from tta_pipeline.methods.catalogue import ZeroSiamHyperparameters
from tta_pipeline.methods.losses import symmetric_cross_entropy
from tta_pipeline.methods.method import GradientMethod
from tta_pipeline.methods.predictor import Predictor


class ZeroSiam(GradientMethod):
    """Adapts the affine parameters of all norm layers, and a predictor between features and classifier."""

    name = "zerosiam"
    keeps = ("_predictor",)

    def __init__(self, model: nn.Module, hyperparameters: ZeroSiamHyperparameters, **kwargs: Any) -> None:
        super().__init__(model, hyperparameters, **kwargs)
        self._predictor = Predictor(
            self.model,
            self._optimizer,
            num_classes=self.num_classes,
            lr=hyperparameters.predictor_lr_factor * hyperparameters.lr,
            method=self.name,
        )

    def _compiled(self) -> list[tuple[object, str]]:
        return [(self, "_asymmetric_loss")]

    def _adapt(self, images: torch.Tensor) -> torch.Tensor:
        logits = self._forward(images)
        self._step(self._asymmetric_loss(self._predictor.logits(), logits.detach()), num_samples=len(images))
        return logits

    def _asymmetric_loss(self, online: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """Return the loss of the logits of both branches, (B, K); *target* is a constant."""
        # Both divergences are the cross entropies less the entropies: that of the online branch is in the loss once
        # with either sign, and that of the target has no gradient.
        return 2 * symmetric_cross_entropy(online, target).mean()
