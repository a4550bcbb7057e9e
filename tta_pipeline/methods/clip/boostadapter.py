"""BoostAdapter: TDA whose positive cache also has the surest crops of the present image.

Zhang et al. 2024, "BoostAdapter: improving vision-language test-time adaptation via regional bootstrapping", as its
authors' program has it for fine-grained sets and corruptions. The caches keep images as TDA's do, with one difference:
the negative cache keeps the latest images, not those of lowest entropy. For its own prediction alone, an image's surest
views enter a copy of the positive cache with more places. Images are taken in order, so the batch size changes nothing.
"""

import math
from typing import Any

import torch
from torch import nn

from tta_pipeline.methods.clip.crop_method import CropMethod
from tta_pipeline.methods.clip.entries import BoostAdapterHyperparameters
from tta_pipeline.methods.clip.image_cache import affinity, enter, make_entropies
from tta_pipeline.methods.losses import entropy


class BoostAdapter(CropMethod):
    """Adds the votes of cached images and of the image's own views, and subtracts those of the negative cache."""

    name = "boostadapter"
    state_attrs = (
        "_positive_features", "_positive_entropies", "_negative_features", "_negative_ages", "_negative_classes",
        "_num_seen",
    )  # fmt: skip

    def __init__(self, model: nn.Module, hyperparameters: BoostAdapterHyperparameters, **kwargs: Any) -> None:
        super().__init__(model, hyperparameters, **kwargs)
        self._settings = hyperparameters
        self._num_kept = max(1, int(hyperparameters.num_views * hyperparameters.kept_share))
        num_classes, width = self._towers.text_features.shape
        positive, negative = (num_classes, hyperparameters.positive_size), (num_classes, hyperparameters.negative_size)
        self._positive_features = torch.zeros(*positive, width, device=self.device)
        self._positive_entropies = make_entropies(*positive, self.device)
        self._negative_features = torch.zeros(*negative, width, device=self.device)
        # The later an image came, the less is its number, so that the earliest one is replaced.
        self._negative_ages = make_entropies(*negative, self.device)
        self._negative_classes = torch.zeros(*negative, num_classes, device=self.device)
        self._num_seen = 0

    def _predict_views(self, logits: torch.Tensor, features: torch.Tensor) -> torch.Tensor:
        with torch.autocast(self.device.type, enabled=False):
            return torch.stack([self._predict_one(*views) for views in zip(logits, features, strict=True)])

    def _predict_one(self, logits: torch.Tensor, features: torch.Tensor) -> torch.Tensor:
        """Return the logits (K,) of an image, from *logits* (V, K) and *features* (V, D) of its views, and keep it."""
        settings, uncertainties, labels = self._settings, entropy(logits), logits.argmax(1)
        feature, own = features[0], logits[0]
        enter(self._positive_entropies, labels[0], uncertainties[0], (self._positive_features, feature))
        self._enter_negative(own, labels[0], uncertainties[0], feature)

        keys, entropies = self._with_free_places()
        surest = uncertainties.argsort(stable=True)[: self._num_kept]
        for label, uncertainty, view in zip(labels[surest], uncertainties[surest], features[surest], strict=True):
            enter(entropies, label, uncertainty, (keys, view))
        votes = affinity(keys, entropies, feature, settings.positive_beta).sum(1)
        against = affinity(self._negative_features, self._negative_ages, feature, settings.negative_beta)
        objections = (against.unsqueeze(2) * self._negative_classes).sum((0, 1))
        return own + settings.positive_alpha * votes - settings.negative_alpha * objections

    def _enter_negative(
        self, logits: torch.Tensor, label: torch.Tensor, uncertainty: torch.Tensor, feature: torch.Tensor
    ) -> None:
        """Let an image of medium *uncertainty* into the negative cache, with the classes that it may be."""
        settings, probabilities = self._settings, logits.softmax(0)
        share = uncertainty / math.log2(self.num_classes)
        is_middling = (settings.entropy_lower < share) & (share < settings.entropy_upper)
        is_probable = (settings.mask_lower < probabilities) & (probabilities < settings.mask_upper)
        self._num_seen += 1
        age = torch.full_like(uncertainty, -self._num_seen).where(is_middling, math.inf)
        cached = (self._negative_features, feature), (self._negative_classes, is_probable.float())
        enter(self._negative_ages, label, age, *cached)

    def _with_free_places(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return features (K, M, D) and entropies (K, M) of a copy of the positive cache with more places."""
        num_classes, _, width = self._positive_features.shape
        free = make_entropies(num_classes, self._settings.num_boosting, self.device)
        features = self._positive_features.new_zeros(*free.shape, width)
        return torch.cat([self._positive_features, features], 1), torch.cat([self._positive_entropies, free], 1)
