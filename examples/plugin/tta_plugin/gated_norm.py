"""Gated norm: the statistics of the batch, only if the source model is unsure."""

import math
from typing import Any

import torch
from torch import nn

from tta_pipeline.methods.ema import frozen_copy
from tta_pipeline.methods.losses import entropy
from tta_pipeline.methods.method import Method
from tta_pipeline.methods.norm_layers import require_batch_norm, use_batch_statistics
from tta_plugin.entries import GatedNormHyperparameters


class GatedNorm(Method):
    """Predicts unsure images with the statistics of the batch, and the others with the source model."""

    def __init__(self, model: nn.Module, hyperparameters: GatedNormHyperparameters, **kwargs: Any) -> None:
        require_batch_norm(model, "gated_norm")
        super().__init__(model, hyperparameters, **kwargs)
        self._by_batch = frozen_copy(model)
        use_batch_statistics(self._by_batch)
        self._least_entropy = hyperparameters.gate * math.log(self.num_classes)

    def _predict(self, images: torch.Tensor) -> torch.Tensor:
        with torch.inference_mode():
            logits = self._forward(images)
            is_unsure = entropy(logits) >= self._least_entropy
            return torch.where(is_unsure[:, None], self._forward(images, self._by_batch), logits)
