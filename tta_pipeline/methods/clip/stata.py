"""StatA: each batch's CLIP features get one Gaussian per class, kept near the class's text if the class is rare.

Zanella et al. 2025, "Realistic test-time adaptation of vision-language models", with facts of its authors' program,
whose licence keeps its code out. Assignments of images to classes, and mean and diagonal variance of each class, are
found in turns, from the anchors on: the anchor of a class is its text feature, with the variance of the images around
all texts by their zero-shot shares. The logits of an assignment are the zero-shot logits, the log-densities of the
image over 50, and the mean assignment of similar images. A Gaussian is a mix of its images' Gaussian and its anchor:
the share of the images is n / (n + weight) for the most likely class of n images. Batches are independent.
"""

from typing import Any

import torch
from torch import nn
from torch.nn.functional import normalize, one_hot

from tta_pipeline.methods.clip.entries import StatAHyperparameters
from tta_pipeline.methods.clip.image_method import ImageMethod

_DENSITY_TEMPERATURE = 50.0
"""Divisor of the log-densities, which grow with the number of dimensions, before they are added to other logits."""
_NUM_ASSIGNMENTS = 5
"""Number of times that assignments are found from the same Gaussians, since similar images depend on each other."""


class StatA(ImageMethod):
    """Predicts each batch by its own Gaussians and the texts; the logits are the assignments'."""

    name = "stata"

    def __init__(self, model: nn.Module, hyperparameters: StatAHyperparameters, **kwargs: Any) -> None:
        super().__init__(model, hyperparameters, **kwargs)
        self._settings = hyperparameters

    def _predict_features(self, features: torch.Tensor) -> torch.Tensor:
        texts = self._towers.text_features
        logits = zero_shot = self._towers.scale * features @ texts.T
        similarity = self._join(features)
        means, variances = anchors = texts, _anchor_variance(features, zero_shot.softmax(1), texts)
        for turn in range(self._settings.num_turns + 1):
            if turn:
                means, variances = self._find_gaussians(features, logits, anchors)
            by_itself = zero_shot + _log_densities(features, means, variances) / _DENSITY_TEMPERATURE
            for _ in range(_NUM_ASSIGNMENTS):
                logits = by_itself + similarity @ logits.softmax(1)
        return logits

    def _join(self, features: torch.Tensor) -> torch.Tensor:
        """Return the weight of each image's assignment in each other image's logits, symmetric (B, B).

        Two images are joined if either is among the other's nearest, with the cosine as weight.
        """
        cosines = features @ features.T
        count = min(self._settings.num_neighbours, len(features) - 1)
        weights, nearest = cosines.fill_diagonal_(-torch.inf).topk(count, dim=1)
        joined = torch.zeros_like(cosines).scatter_(1, nearest, weights)
        return self._settings.neighbour_weight * (joined + joined.T) / (2 * self._settings.num_neighbours)

    def _find_gaussians(
        self, features: torch.Tensor, logits: torch.Tensor, anchors: tuple[torch.Tensor, torch.Tensor]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return mean, of length 1, and variance of each class, both (K, D).

        Args:
            features: Features of the batch, (B, D).
            logits: Logits of the assignment of each image, (B, K).
            anchors: Mean (K, D) and variance (K or 1, D) of each class's anchor.
        """
        (texts, of_texts), shares = anchors, logits.softmax(1)
        count = one_hot(logits.argmax(1), len(texts)).sum(0).unsqueeze(1)
        trust = count / (count + self._settings.anchor_weight)
        means = normalize(trust * normalize(_means(features, shares), dim=1) + (1 - trust) * texts, dim=1)
        of_anchor = of_texts + (texts - means).square()
        variances = trust * _variances(features, shares, means) + (1 - trust) * of_anchor
        return means, variances.clamp(min=torch.finfo(variances.dtype).eps)


def _means(values: torch.Tensor, shares: torch.Tensor) -> torch.Tensor:
    """Return the mean of *values* (B, D) of each class, (K, D), by the *shares* (B, K) of the images."""
    total = shares.sum(0).clamp(min=torch.finfo(shares.dtype).tiny)  # no image may have a share in a class
    return shares.T @ values / total.unsqueeze(1)


def _variances(features: torch.Tensor, shares: torch.Tensor, centres: torch.Tensor) -> torch.Tensor:
    """Return the mean square of the distance of *features* (B, D) to each class's centre (K, D), by dimension."""
    means, squares = _means(features, shares), _means(features.square(), shares)
    return (squares - 2 * centres * means + centres.square()).clamp(min=0)


def _anchor_variance(features: torch.Tensor, shares: torch.Tensor, texts: torch.Tensor) -> torch.Tensor:
    """Return the variance (1, D) of all images around the texts (K, D), by the *shares* (B, K)."""
    return shares.mean(0, keepdim=True) @ _variances(features, shares, texts)


def _log_densities(features: torch.Tensor, means: torch.Tensor, variances: torch.Tensor) -> torch.Tensor:
    """Return the logarithms (B, K) of the densities of *features* (B, D), up to a constant."""
    precisions = 1 / variances
    squares = features.square() @ precisions.T - 2 * features @ (means * precisions).T
    return -(squares + (means.square() * precisions).sum(1) + variances.log().sum(1)) / 2
