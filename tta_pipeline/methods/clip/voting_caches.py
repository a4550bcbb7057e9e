"""The two caches of TDA and BoostAdapter: images that vote for their class, and images that vote against others.

Karmanov et al. 2024, "Efficient test-time adaptation of vision-language models". For each class, the positive cache
keeps the images that were predicted as this class with the lowest entropy, and votes for the class. The negative cache
keeps images of medium entropy, and votes against the classes that were probable for them. Votes are weighted by the
affinity to the image.
"""

import math

import torch

from tta_pipeline.methods.clip.entries import TdaHyperparameters
from tta_pipeline.methods.clip.image_cache import ImageCache
from tta_pipeline.methods.stateful import Stateful


class VotingCaches(Stateful):
    """Both caches for images with features of *width* D and predictions of K = *num_classes*."""

    state_attrs = ("positive", "_negative")

    def __init__(self, settings: TdaHyperparameters, *, num_classes: int, width: int, device: torch.device) -> None:
        self._settings = settings
        self._largest_entropy = math.log2(num_classes)
        self.positive = ImageCache(num_classes, settings.positive_size, widths=[width], device=device)
        self._negative = ImageCache(num_classes, settings.negative_size, widths=[width, num_classes], device=device)

    def enter(
        self,
        feature: torch.Tensor,
        probabilities: torch.Tensor,
        *,
        label: torch.Tensor,
        uncertainty: torch.Tensor,
        negative_rank: torch.Tensor,
    ) -> None:
        """Offer an image to both caches; the host never waits.

        Args:
            feature: Feature of the image, (D,).
            probabilities: Its predicted probabilities, (K,).
            label: Its predicted class, a scalar.
            uncertainty: Entropy of its prediction in nats, a scalar.
            negative_rank: Its rank in the negative cache, which keeps the lowest, a scalar.
        """
        settings, share = self._settings, uncertainty / self._largest_entropy
        is_middling = (settings.entropy_lower < share) & (share < settings.entropy_upper)
        is_probable = (settings.mask_lower < probabilities) & (probabilities < settings.mask_upper)
        self.positive.enter(label, uncertainty, feature)
        self._negative.enter(label, negative_rank.where(is_middling, math.inf), feature, is_probable.float())

    def correct(
        self, logits: torch.Tensor, feature: torch.Tensor, *, positive: ImageCache | None = None
    ) -> torch.Tensor:
        """Return the *logits* (K,) of the image with *feature* (D,), corrected by the votes of both caches.

        *positive*, if given, votes instead of the positive cache.
        """
        settings = self._settings
        votes = (positive or self.positive).affinity(feature, settings.positive_beta)
        against = self._negative.affinity(feature, settings.negative_beta)
        objections = (against.unsqueeze(2) * self._negative.values[1]).sum((0, 1))
        return logits + settings.positive_alpha * votes.sum(1) - settings.negative_alpha * objections
