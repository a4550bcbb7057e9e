"""TDA: caches of sure images correct the zero-shot prediction.

Karmanov et al. 2024, "Efficient test-time adaptation of vision-language models". For each class the positive cache
keeps the features of the images that were predicted as it with least entropy, and votes for it, by affinity; the
negative cache keeps images of middling entropy, and votes against the classes that were probable for them. Images are
processed in their order, each with the caches that hold those before it and itself, so that the size of the batch
changes nothing.
"""

import math
from typing import Any

import torch
from torch import nn

from tta_pipeline.methods.catalogue import TdaHyperparameters
from tta_pipeline.methods.losses import entropy
from tta_pipeline.methods.method import Method
from tta_pipeline.methods.two_towers import TwoTowers


class Tda(Method):
    """Adds what the positive cache says to the logits, and takes away what the negative cache says."""

    name = "tda"
    keeps = (
        "_positive_features", "_positive_entropies", "_negative_features", "_negative_entropies", "_negative_classes",
    )  # fmt: skip

    def __init__(self, model: nn.Module, hyperparameters: TdaHyperparameters, **kwargs: Any) -> None:
        super().__init__(model, hyperparameters, **kwargs)
        self._settings = hyperparameters
        self._towers = TwoTowers(model, self.name, num_classes=self.num_classes)
        num_classes, width = self._towers.text_features.shape
        positive, negative = (num_classes, hyperparameters.positive_size), (num_classes, hyperparameters.negative_size)
        # Free places have infinite entropy, so that any image is preferred to them.
        self._positive_features = torch.zeros(*positive, width, device=self.device)
        self._positive_entropies = torch.full(positive, math.inf, device=self.device)
        self._negative_features = torch.zeros(*negative, width, device=self.device)
        self._negative_entropies = torch.full(negative, math.inf, device=self.device)
        self._negative_classes = torch.zeros(*negative, num_classes, device=self.device)

    def _predict(self, images: torch.Tensor) -> torch.Tensor:
        with torch.inference_mode():
            logits = self._forward(images).float()
            features = self._towers.take_image_features()
            rows = zip(features, logits, logits.softmax(1), logits.argmax(1), entropy(logits), strict=True)
            return torch.stack([self._corrected(*row) for row in rows])

    def _corrected(
        self,
        feature: torch.Tensor,
        logits: torch.Tensor,
        probabilities: torch.Tensor,
        label: torch.Tensor,
        uncertainty: torch.Tensor,
    ) -> torch.Tensor:
        """Take one image, its entropy *uncertainty*, into the caches, and return its logits (K,)."""
        settings = self._settings
        share = uncertainty / math.log2(self.num_classes)
        is_middling = (settings.entropy_lower < share) & (share < settings.entropy_upper)
        is_probable = (settings.mask_lower < probabilities) & (probabilities < settings.mask_upper)
        _take_in(self._positive_entropies, label, uncertainty, (self._positive_features, feature))
        _take_in(
            self._negative_entropies,
            label,
            uncertainty.where(is_middling, math.inf),
            (self._negative_features, feature),
            (self._negative_classes, is_probable.float()),
        )
        votes = _affinity(self._positive_features, self._positive_entropies, feature, settings.positive_beta)
        against = _affinity(self._negative_features, self._negative_entropies, feature, settings.negative_beta)
        objections = (against.unsqueeze(2) * self._negative_classes).sum((0, 1))
        return logits + settings.positive_alpha * votes.sum(1) - settings.negative_alpha * objections


def _take_in(
    entropies: torch.Tensor,
    label: torch.Tensor,
    uncertainty: torch.Tensor,
    *cached: tuple[torch.Tensor, torch.Tensor],
) -> None:
    """Put an image in the place of the one of its class with most entropy, if it has less; the host waits for nothing.

    Args:
        entropies: Those of the cache, (K, M).
        label: Class of the image, a scalar.
        uncertainty: Its entropy, a scalar.
        cached: Tensors (K, M, ...) of the cache, each with the image's value.
    """
    index = label.view(1)
    of_class = entropies.index_select(0, index).squeeze(0)
    is_replaced = (torch.arange(len(of_class), device=of_class.device) == of_class.argmax()) & (uncertainty < of_class)
    entropies.index_copy_(0, index, uncertainty.where(is_replaced, of_class).unsqueeze(0))
    for values, value in cached:
        rows = values.index_select(0, index).squeeze(0)
        values.index_copy_(0, index, value.where(is_replaced.unsqueeze(1), rows).unsqueeze(0))


def _affinity(keys: torch.Tensor, entropies: torch.Tensor, feature: torch.Tensor, beta: float) -> torch.Tensor:
    """Return exp(-beta (1 - cosine)) of each kept image with *feature*, (K, M), 0 for free places."""
    return (-beta * (1 - keys @ feature)).exp().where(entropies.isfinite(), 0.0)
