"""TDA: caches of confident and of less confident images correct CLIP's zero-shot prediction.

Karmanov et al. 2024, "Efficient test-time adaptation of vision-language models"; `voting_caches` has the caches. Images
are processed in order, and each image enters the caches before it is predicted, so the batch size does not change the
predictions.
"""

from typing import Any

import torch
from torch import nn

from tta_pipeline.methods.clip.entries import TdaHyperparameters
from tta_pipeline.methods.clip.two_towers import TwoTowers
from tta_pipeline.methods.clip.voting_caches import VotingCaches
from tta_pipeline.methods.losses import entropy
from tta_pipeline.methods.method import Method


class Tda(Method):
    """Adds the positive cache's votes to the zero-shot logits, and subtracts the negative cache's votes."""

    name = "tda"
    reads_only_features = True
    state_attrs = ("_caches",)

    def __init__(self, model: nn.Module, hyperparameters: TdaHyperparameters, **kwargs: Any) -> None:
        super().__init__(model, hyperparameters, **kwargs)
        self._towers = TwoTowers(model, self.name, num_classes=self.num_classes)
        num_classes, width = self._towers.text_features.shape
        self._caches = VotingCaches(hyperparameters, num_classes=num_classes, width=width, device=self.device)

    def _predict(self, images: torch.Tensor) -> torch.Tensor:
        with torch.inference_mode():
            logits = self._source_logits = self._forward(images).float()
            features = self._towers.take_image_features()
            rows = zip(features, logits, logits.softmax(1), logits.argmax(1), entropy(logits), strict=True)
            return torch.stack([self._correct_logits(*row) for row in rows])

    def source_logits(self) -> torch.Tensor:
        """Return the zero-shot logits (B, K) of the images of the last prediction."""
        return self._source_logits

    def _correct_logits(
        self,
        feature: torch.Tensor,
        logits: torch.Tensor,
        probabilities: torch.Tensor,
        label: torch.Tensor,
        uncertainty: torch.Tensor,
    ) -> torch.Tensor:
        """Offer one image, of entropy *uncertainty*, to the caches, and return its corrected logits (K,)."""
        self._caches.enter(feature, probabilities, label=label, uncertainty=uncertainty, negative_rank=uncertainty)
        return self._caches.correct(logits, feature)
