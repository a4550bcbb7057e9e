"""TDA: caches of certain and of less certain images correct the zero-shot prediction of a CLIP.

Karmanov et al. 2024, "Efficient test-time adaptation of vision-language models". For each class, the positive cache
keeps the features of the images that were predicted as this class with the lowest entropy, and votes for the class. The
negative cache keeps images of medium entropy, and votes against the classes that were probable for them. Votes are
weighted by the affinity to the image. Images are processed in order, and each image enters the caches before it is
predicted, so the batch size does not change the predictions.
"""

import math
from typing import Any

import torch
from torch import nn

from tta_pipeline.methods.clip.entries import TdaHyperparameters
from tta_pipeline.methods.clip.image_cache import affinity, enter, make_entropies
from tta_pipeline.methods.clip.two_towers import TwoTowers
from tta_pipeline.methods.losses import entropy
from tta_pipeline.methods.method import Method


class Tda(Method):
    """Adds the votes of the positive cache to the zero-shot logits, and subtracts those of the negative cache."""

    name = "tda"
    reads_only_features = True
    state_attrs = (
        "_positive_features", "_positive_entropies", "_negative_features", "_negative_entropies", "_negative_classes",
    )  # fmt: skip

    def __init__(self, model: nn.Module, hyperparameters: TdaHyperparameters, **kwargs: Any) -> None:
        super().__init__(model, hyperparameters, **kwargs)
        self._settings = hyperparameters
        self._towers = TwoTowers(model, self.name, num_classes=self.num_classes)
        num_classes, width = self._towers.text_features.shape
        positive, negative = (num_classes, hyperparameters.positive_size), (num_classes, hyperparameters.negative_size)
        self._positive_features = torch.zeros(*positive, width, device=self.device)
        self._positive_entropies = make_entropies(*positive, self.device)
        self._negative_features = torch.zeros(*negative, width, device=self.device)
        self._negative_entropies = make_entropies(*negative, self.device)
        self._negative_classes = torch.zeros(*negative, num_classes, device=self.device)

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
        settings = self._settings
        share = uncertainty / math.log2(self.num_classes)
        is_middling = (settings.entropy_lower < share) & (share < settings.entropy_upper)
        is_probable = (settings.mask_lower < probabilities) & (probabilities < settings.mask_upper)
        enter(self._positive_entropies, label, uncertainty, (self._positive_features, feature))
        enter(
            self._negative_entropies,
            label,
            uncertainty.where(is_middling, math.inf),
            (self._negative_features, feature),
            (self._negative_classes, is_probable.float()),
        )
        votes = affinity(self._positive_features, self._positive_entropies, feature, settings.positive_beta)
        against = affinity(self._negative_features, self._negative_entropies, feature, settings.negative_beta)
        objections = (against.unsqueeze(2) * self._negative_classes).sum((0, 1))
        return logits + settings.positive_alpha * votes.sum(1) - settings.negative_alpha * objections
