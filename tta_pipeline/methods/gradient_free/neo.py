"""NEO: centres the features by subtracting their mean over the stream.

Murphy et al. 2026, "NEO: No-optimization test-time adaptation through latent re-centering". A shift moves the features
of all images, the inputs of the classifier, in much the same direction. The mean of all features of the stream so far,
including the current batch, is subtracted before the classifier; weight and bias of the classifier do not change.
There are no hyperparameters. The features of the very first image are their own mean: if this image is alone in its
batch, its logits are the bias.
"""

from typing import Any

import torch
from torch import nn
from torch.nn.functional import linear

from tta_pipeline.methods.entry import Hyperparameters
from tta_pipeline.methods.gradient_free.feature_method import FeatureMethod


class Neo(FeatureMethod):
    """Predicts from features minus their running mean over the stream."""

    name = "neo"
    state_attrs = ("_mean", "_num_seen")

    def __init__(self, model: nn.Module, hyperparameters: Hyperparameters, **kwargs: Any) -> None:
        super().__init__(model, hyperparameters, **kwargs)
        self._mean = torch.zeros(self._classifier.in_features, device=self.device)
        self._num_seen = 0

    def _predict(self, images: torch.Tensor) -> torch.Tensor:
        with torch.inference_mode():
            self._forward(images)
            features = self._features.take().float()
            self._num_seen += len(features)
            self._mean.lerp_(features.mean(0), len(features) / self._num_seen)
            return self._classify(features)

    def _classify(self, features: torch.Tensor) -> torch.Tensor:
        return linear(features - self._mean, self._classifier.weight, self._classifier.bias)
