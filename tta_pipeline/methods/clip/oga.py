"""OGA: each class has a Gaussian likelihood, from the stream's most confident images; the prior is zero-shot.

Fuchs et al. 2025, "Online Gaussian adaptation of vision-language models", with its authors' program. A cache keeps the
images of each class that were predicted with the lowest entropy. A class with at least two of them has their mean; the
others have their text feature. All share one covariance. A batch enters the cache and is then predicted, by the
zero-shot probabilities times the softmax of the weighted Gaussian logarithms. The batch size thus matters.

Two things follow the program: a mean divides by the places of the cache, not by the images in it, so a class with few
images has a short mean, and the covariance is computed from all centred images around their own mean. With up to four
images per dimension, the precision is shrunk like an empirical Bayes ridge estimator.
"""

from typing import Any

import torch
from torch import nn

from tta_pipeline.methods.clip.entries import OgaHyperparameters
from tta_pipeline.methods.clip.image_cache import ImageCache
from tta_pipeline.methods.clip.image_method import ImageMethod
from tta_pipeline.methods.losses import entropy

_MIN_FOR_MEAN = 2
_MIN_FOR_COVARIANCE = 3
_SHRUNK_UP_TO = 4
"""Number of images for each dimension above which the precision is the inverse covariance itself."""


class Oga(ImageMethod):
    """Predicts by Gaussians of cached images and the zero-shot prior; the logits are the posterior's."""

    name = "oga"
    state_attrs = ("_cache",)

    def __init__(self, model: nn.Module, hyperparameters: OgaHyperparameters, **kwargs: Any) -> None:
        super().__init__(model, hyperparameters, **kwargs)
        self._weight = hyperparameters.likelihood_weight
        num_classes, width = self._towers.text_features.shape
        self._cache = ImageCache(num_classes, hyperparameters.cache_size, widths=[width], device=self.device)

    def _predict_features(self, features: torch.Tensor) -> torch.Tensor:
        text_features = self._towers.text_features
        logits = self._towers.scale * features @ text_features.T
        for feature, label, uncertainty in zip(features, logits.argmax(1), entropy(logits), strict=True):
            self._cache.enter(label, uncertainty, feature)
        cached, is_kept = self._cache.features, self._cache.is_kept
        has_mean = (is_kept.sum(1) >= _MIN_FOR_MEAN).unsqueeze(1)
        means = (cached * is_kept.unsqueeze(2)).mean(1).where(has_mean, text_features)
        directions = means @ _precision(cached, is_kept, means)
        # The image's own quadratic term is the same for all classes.
        return logits + self._weight * (features @ directions.T - (directions * means).sum(1) / 2)


def _precision(cache: torch.Tensor, is_kept: torch.Tensor, means: torch.Tensor) -> torch.Tensor:
    """Return the inverse covariance (D, D) of the kept images of *cache* (K, M, D); *is_kept* is (K, M).

    Until a class has three images, the unit ball's inverse covariance is returned: D times the identity.
    """
    width = cache.shape[2]
    count = is_kept.sum()
    kept = is_kept.unsqueeze(2)
    centred = (cache - means.unsqueeze(1)) * kept
    centred = (centred - centred.sum((0, 1)) / count) * kept
    scatter = centred.flatten(0, 1).T @ centred.flatten(0, 1)
    identity = torch.eye(width, device=cache.device)
    covariance = scatter / (count - 1).clamp(min=1)
    ridge = (scatter + covariance.trace() * identity) / width
    is_known = is_kept.sum(1).max() >= _MIN_FOR_COVARIANCE
    used = ridge.where(count <= _SHRUNK_UP_TO * width, covariance).where(is_known, identity / width)
    precision: torch.Tensor = torch.linalg.pinv(used, hermitian=True)
    return precision
