"""LAME: corrects a batch's predictions so that samples with similar features get similar predictions.

Boudiaf et al. 2022, "Parameter-free online test-time adaptation", section 4. The model stays unchanged. The assignments
y of a batch minimise the sum over samples of KL(y_i || p_i) - sum_j w_ij y_i . y_j, where p are the model's predictions
and the second term, a Laplacian, draws similar samples together. The minimum is found by the concave-convex steps of
equation 8, Y = softmax(log p + W Y). Constants (5 neighbours, 100 steps, relative change of 1e-8, 1e-10 within the
logarithm) come from the authors' code. So does the radial kernel; its width is the mean distance to the fifth
neighbour, counting the sample itself.
"""

from typing import Any

import torch
from torch import nn
from torch.nn.functional import normalize

from tta_pipeline.methods.features import Features, find_classifier
from tta_pipeline.methods.gradient_free.entries import LameHyperparameters
from tta_pipeline.methods.method import Method


class Lame(Method):
    """Corrects the source model's predictions for a batch by the affinities of its features."""

    reads_only_features = True
    name = "lame"

    def __init__(self, model: nn.Module, hyperparameters: LameHyperparameters, **kwargs: Any) -> None:
        super().__init__(model, hyperparameters, **kwargs)
        self._settings = hyperparameters
        self._features = Features(find_classifier(model, num_classes=self.num_classes, method=self.name))

    def _predict(self, images: torch.Tensor) -> torch.Tensor:
        with torch.inference_mode():
            self._source_logits = self._forward(images).float()
            probabilities = self._source_logits.softmax(1)
            features = normalize(self._features.take().float(), dim=1)
            return self._assign((probabilities + 1e-10).log(), self._affinity(features))

    def source_logits(self) -> torch.Tensor:
        """Return the source model's logits (B, K) for the images of the last prediction."""
        return self._source_logits

    def _affinity(self, features: torch.Tensor) -> torch.Tensor:
        """Return the affinities w, (B, B), of unit-length *features* (B, D)."""
        distances = torch.cdist(features, features)
        count = len(features)
        if self._settings.affinity == "knn":
            nearest = distances.topk(min(self._settings.knn + 1, count), largest=False).indices[:, 1:]
            weights = torch.zeros_like(distances).scatter_(1, nearest, 1.0)
        else:
            width = distances.topk(min(self._settings.knn, count), largest=False).values[:, -1].mean()
            weights = (-distances.square() / (2 * width.square().clamp(min=1e-12))).exp()
        return (weights + weights.T) / 2 if self._settings.force_symmetry else weights

    def _assign(self, log_probabilities: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        """Return the logarithm of the assignments, (B, K)."""
        assigned = log_probabilities.log_softmax(1)
        energy = float("inf")
        for step in range(self._settings.max_steps):
            agreement = weights @ assigned.exp()
            assigned = (log_probabilities + agreement).log_softmax(1)
            previous, energy = energy, _energy(assigned, log_probabilities, agreement)
            # The host waits for the energy in each step, since most batches need only a tenth of the steps.
            if step > 1 and abs(energy - previous) <= 1e-8 * abs(previous):
                break
        return assigned


def _energy(assigned: torch.Tensor, log_probabilities: torch.Tensor, agreement: torch.Tensor) -> float:
    return (assigned.exp() * (assigned - log_probabilities - agreement)).sum().item()
