"""BoostAdapter: TDA whose positive cache also contains the most confident crops of the current image.

Zhang et al. 2024, "BoostAdapter: improving vision-language test-time adaptation via regional bootstrapping", as in its
authors' program for fine-grained sets and corruptions. The caches keep images as TDA's do, with one difference:
the negative cache keeps the latest images, not the images of lowest entropy. For an image's own prediction only, its
most confident views enter a copy of the positive cache with more places. Images are processed in order, so the batch
size does not change the predictions.
"""

from typing import Any

import torch
from torch import nn

from tta_pipeline.methods.clip.crop_method import CropMethod, count_kept
from tta_pipeline.methods.clip.entries import BoostAdapterHyperparameters
from tta_pipeline.methods.clip.voting_caches import VotingCaches
from tta_pipeline.methods.losses import entropy


class BoostAdapter(CropMethod):
    """Adds the votes of cached images and of the image's own views, and subtracts the negative cache's votes."""

    name = "boostadapter"
    state_attrs = ("_caches", "_num_seen")

    def __init__(self, model: nn.Module, hyperparameters: BoostAdapterHyperparameters, **kwargs: Any) -> None:
        super().__init__(model, hyperparameters, **kwargs)
        self._num_boosting = hyperparameters.num_boosting
        self._num_kept = count_kept(hyperparameters.num_views, hyperparameters.kept_share)
        num_classes, width = self._towers.text_features.shape
        self._caches = VotingCaches(hyperparameters, num_classes=num_classes, width=width, device=self.device)
        self._num_seen = 0

    def _predict_views(self, logits: torch.Tensor, features: torch.Tensor) -> torch.Tensor:
        with torch.autocast(self.device.type, enabled=False):
            return torch.stack([self._predict_one(*views) for views in zip(logits, features, strict=True)])

    def _predict_one(self, logits: torch.Tensor, features: torch.Tensor) -> torch.Tensor:
        """Return the logits (K,) of an image, from *logits* (V, K) and *features* (V, D) of its views, and keep it."""
        uncertainties, labels = entropy(logits), logits.argmax(1)
        self._num_seen += 1
        self._caches.enter(
            features[0],
            logits[0].softmax(0),
            label=labels[0],
            uncertainty=uncertainties[0],
            # Later images have lower numbers, so that the earliest image is replaced.
            negative_rank=torch.full_like(uncertainties[0], -self._num_seen),
        )
        boosted = self._caches.positive.with_free_places(self._num_boosting)
        surest = uncertainties.argsort(stable=True)[: self._num_kept]
        for label, uncertainty, view in zip(labels[surest], uncertainties[surest], features[surest], strict=True):
            boosted.enter(label, uncertainty, view)
        return self._caches.correct(logits[0], features[0], positive=boosted)
