"""MTA: predicts an image from the mode of its views' features, found by mean shift.

Zanella and Ben Ayed 2024, "On the test-time zero-shot generalization of vision-language models: do we really need
prompt learning?", as in its authors' program. Each view has an inlierness: it is large if the view is close to
the mode, in a Gaussian kernel with its own bandwidth, and if inlier views predict the same. Inlierness and mode are
updated in turns, each by a few fixed-point steps, for all images of a batch at once. The authors' code stops early at
convergence; this file takes all steps, so that the host never waits.
"""

from typing import Any

import torch
from torch import nn
from torch.nn.functional import normalize

from tta_pipeline.methods.clip.crop_method import CropMethod
from tta_pipeline.methods.clip.entries import MtaHyperparameters

_NEIGHBOUR_SHARE = 0.3
"""Share of the other views, the nearest, whose distance to a view is its bandwidth."""
_NUM_TURNS = 5
_NUM_STEPS = 5


class Mta(CropMethod):
    """Predicts by the cosines between the mode of the views and the text features."""

    name = "mta"

    def __init__(self, model: nn.Module, hyperparameters: MtaHyperparameters, **kwargs: Any) -> None:
        super().__init__(model, hyperparameters, **kwargs)
        self._settings = hyperparameters

    def _predict_views(self, logits: torch.Tensor, features: torch.Tensor) -> torch.Tensor:
        with torch.autocast(self.device.type, enabled=False):
            probabilities = logits.softmax(2)
            mode = self._find_mode(features, probabilities @ probabilities.mT)
            return self._towers.scale * mode @ self._towers.text_features.T

    def _find_mode(self, features: torch.Tensor, affinity: torch.Tensor) -> torch.Tensor:
        """Return the mode (B, D) of *features* (B, V, D); *affinity* (B, V, V) compares the views' predictions."""
        settings = self._settings
        variance = _kernel_variance(features)
        mode = features[:, 0]
        inlierness = torch.full_like(variance, 1 / features.shape[1])
        for _ in range(_NUM_TURNS):
            density = _density(features, mode, variance)
            for _ in range(_NUM_STEPS):
                support = (affinity @ inlierness.unsqueeze(2)).squeeze(2)
                inlierness = ((density + settings.affinity_weight * support) / settings.entropy_weight).softmax(1)
            for _ in range(_NUM_STEPS):
                weights = _density(features, mode, variance) * inlierness
                shares = weights / weights.sum(1, keepdim=True)
                mode = normalize((shares.unsqueeze(1) @ features).squeeze(1), dim=1)
        return mode


def _kernel_variance(features: torch.Tensor) -> torch.Tensor:
    """Return the squared bandwidth of each view's kernel, (B, V): half its mean squared distance to the nearest."""
    num_nearest = max(1, int(_NEIGHBOUR_SHARE * (features.shape[1] - 1)))
    distances = torch.cdist(features, features).sort(2).values
    nearest = distances[:, :, 1 : 1 + num_nearest]  # the first is the view itself
    # Views of a plain image are all alike, and rounding is their only distance.
    return (nearest.square().mean(2) / 2).clamp(min=torch.finfo(features.dtype).eps)


def _density(features: torch.Tensor, mode: torch.Tensor, variance: torch.Tensor) -> torch.Tensor:
    """Return the kernel of each view at the *mode* (B, D), (B, V)."""
    distances = (features - mode.unsqueeze(1)).square().sum(2)
    return (-distances / (2 * variance)).exp()
