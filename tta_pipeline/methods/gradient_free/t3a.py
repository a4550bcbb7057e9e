"""T3A: the classifier's weights are replaced by means of the stream's features.

Iwasawa and Matsuo 2021, "Test-time classifier adjustment module for model-agnostic domain generalization", section 4.
The support set of class k starts with the classifier's weight for k (equation 3), and each feature that is predicted as
k is added to it (equation 4). Only the M features of lowest entropy stay (equation 6). The logit of a class is the
product of the feature with the mean of the class's support set (equation 5). A batch is added before it is predicted.
All members have length 1, and so has the mean, as in the authors' code.
"""

from typing import Any

import torch
from torch import nn
from torch.nn.functional import normalize

from tta_pipeline.methods.gradient_free.entries import T3aHyperparameters
from tta_pipeline.methods.gradient_free.feature_method import FeatureMethod
from tta_pipeline.methods.losses import entropy


class T3a(FeatureMethod):
    """Predicts the class whose mean feature is nearest; the means follow the stream."""

    name = "t3a"
    state_attrs = ("_supports", "_entropies")

    def __init__(self, model: nn.Module, hyperparameters: T3aHyperparameters, **kwargs: Any) -> None:
        super().__init__(model, hyperparameters, **kwargs)
        self._size = hyperparameters.filter_k
        self._supports, self._entropies = self._first_supports()

    @torch.no_grad()
    def _first_supports(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the first supports (K, M, D), which hold each class's weight, and their entropies (K, M)."""
        weight, bias = self._classifier.weight, self._classifier.bias
        # Free places have infinite entropy, so that any feature replaces them.
        entropies = torch.full((self.num_classes, self._size), float("inf"), device=self.device)
        entropies[:, 0] = entropy(weight @ weight.T + (0 if bias is None else bias))
        supports = weight.new_zeros(self.num_classes, self._size, weight.shape[1])
        supports[:, 0] = normalize(weight, dim=1)
        return supports, entropies

    def _predict(self, images: torch.Tensor) -> torch.Tensor:
        with torch.inference_mode():
            self._source_logits = self._forward(images).float()
            features = self._features.take().float()
            self._update_supports(normalize(features, dim=1), self._source_logits)
            return self._classify(features)

    def _classify(self, features: torch.Tensor) -> torch.Tensor:
        kept = torch.isfinite(self._entropies).unsqueeze(2)
        centroids = normalize(self._supports.where(kept, 0.0).sum(1), dim=1)
        return features @ centroids.T

    def source_logits(self) -> torch.Tensor:
        """Return the source model's logits (B, K) for the images of the last prediction."""
        return self._source_logits

    def _update_supports(self, features: torch.Tensor, logits: torch.Tensor) -> None:
        """Add *features* (B, D) to the supports of their classes, and keep the supports of lowest entropy."""
        classes = torch.arange(self.num_classes, device=self.device).unsqueeze(1)
        candidates = entropy(logits).where(logits.argmax(1) == classes, float("inf"))
        entropies, chosen = torch.cat([self._entropies, candidates], 1).topk(self._size, largest=False)
        # Kept supports have indices within their class; new features come after the supports of all classes.
        rows = torch.where(chosen < self._size, chosen + classes * self._size, chosen + (len(classes) - 1) * self._size)
        supports = torch.cat([self._supports.flatten(0, 1), features])
        torch.index_select(supports, 0, rows.flatten(), out=self._supports.flatten(0, 1))
        self._entropies.copy_(entropies)
