"""Methods that predict only from CLIP's image features, and leave both towers unchanged.

All computation after the features is in float32, under autocast too.
"""

from abc import abstractmethod
from typing import Any

import torch
from torch import nn

from tta_pipeline.methods.clip.two_towers import TwoTowers
from tta_pipeline.methods.entry import Hyperparameters
from tta_pipeline.methods.method import Method


class ImageMethod(Method):
    """Predicts each batch by `_predict_features`."""

    reads_only_features = True

    def __init__(self, model: nn.Module, hyperparameters: Hyperparameters, **kwargs: Any) -> None:
        super().__init__(model, hyperparameters, **kwargs)
        self._towers = TwoTowers(model, self.name, num_classes=self.num_classes)

    @abstractmethod
    def _predict_features(self, features: torch.Tensor) -> torch.Tensor:
        """Return the logits (B, K) of images with *features*, float32 (B, D), rows of length 1."""

    def _predict(self, images: torch.Tensor) -> torch.Tensor:
        with torch.inference_mode():
            self._forward(images)
            with torch.autocast(self.device.type, enabled=False):
                return self._predict_features(self._towers.take_image_features())
