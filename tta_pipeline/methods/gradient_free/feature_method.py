"""Base of methods that learn from the features of a frozen network and replace its classifier."""

from abc import abstractmethod
from typing import Any

import torch
from torch import nn

from tta_pipeline.methods.entry import Hyperparameters
from tta_pipeline.methods.features import Features, find_classifier
from tta_pipeline.methods.method import Method


class FeatureMethod(Method):
    """A method that predicts from the inputs of the classifier, by what the method has learned of them."""

    reads_only_features = True

    def __init__(self, model: nn.Module, hyperparameters: Hyperparameters, **kwargs: Any) -> None:
        super().__init__(model, hyperparameters, **kwargs)
        self._classifier = find_classifier(model, num_classes=self.num_classes, method=self.name)
        self._features = Features(self._classifier)

    def predict_unadapted(self, images: torch.Tensor) -> torch.Tensor:
        """Return logits (B, K) for *images*, from which the method learns nothing."""
        super().predict_unadapted(images)
        with torch.inference_mode():
            return self._classify(self._features.take().float())

    @abstractmethod
    def _classify(self, features: torch.Tensor) -> torch.Tensor:
        """Return logits (B, K) for *features*, float32 (B, D)."""
