"""StatA: Gaussians of the classes in a batch of a CLIP's features, each held near its text where the batch has little.

Zanella et al. 2025, "Realistic test-time adaptation of vision-language models". Assignments of images to classes, and
mean and diagonal covariance of each class, are found in turns. The objective is the negative log-likelihood of the
mixture plus a weight times the KL divergence of each class's Gaussian from its anchor: the text feature with the
variance of the images around the text features, by their zero-shot predictions. Its minimum has a closed form: mean and
covariance lie between those of the assigned images and those of the anchor, and the share of the images is
n / (n + weight) for a class with n images. Each batch is treated by itself.

The authors' program is not free, and was not read; of the paper only the abstract could be had. This file follows the
objective, the anchors, the update of the means and the count of images by their likeliest class as a public summary of
the paper states them. Three things follow from what it says, but are not in it: the update of the covariances, which is
the objective's; assignments held near the zero-shot prediction by their KL divergence, as in the first author's
TransCLIP, since the summary says that they are held; the number of turns. No term joins similar images.
"""

from typing import Any

import torch
from torch import nn
from torch.nn.functional import one_hot

from tta_pipeline.methods.clip.entries import StatAHyperparameters
from tta_pipeline.methods.clip.image_method import ImageMethod


class StatA(ImageMethod):
    """Predicts each batch by its own Gaussians and the texts; logits are those of the assignments."""

    name = "stata"

    def __init__(self, model: nn.Module, hyperparameters: StatAHyperparameters, **kwargs: Any) -> None:
        super().__init__(model, hyperparameters, **kwargs)
        self._settings = hyperparameters

    def _predict_features(self, features: torch.Tensor) -> torch.Tensor:
        texts = self._towers.text_features
        logits = zero_shot = self._towers.scale * features @ texts.T
        anchor = _anchor_variance(features, zero_shot.softmax(1), texts)
        for _ in range(self._settings.num_turns):
            means, variances = self._find_gaussians(features, logits, anchor)
            logits = _log_densities(features, means, variances) + self._settings.text_weight * zero_shot
        return logits

    def _find_gaussians(
        self, features: torch.Tensor, logits: torch.Tensor, anchor: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return mean and variance of each class, both (K, D).

        Args:
            features: Features of the batch, (B, D).
            logits: Logits of the assignment of each image, (B, K).
            anchor: Variance of every class's anchor, (1, D).
        """
        texts, assigned = self._towers.text_features, logits.softmax(1)
        count = one_hot(logits.argmax(1), len(texts)).sum(0).unsqueeze(1)
        trust = count / (count + self._settings.anchor_weight)
        means = trust * _means(features, assigned) + (1 - trust) * texts
        of_images, of_anchor = _variances(features, assigned, means), anchor + (texts - means).square()
        variances = trust * of_images + (1 - trust) * of_anchor
        return means, variances.clamp(min=torch.finfo(variances.dtype).eps)


def _means(values: torch.Tensor, assigned: torch.Tensor) -> torch.Tensor:
    """Return the mean of *values* (B, D) of each class, (K, D), by the shares *assigned* (B, K)."""
    total = assigned.sum(0).clamp(min=torch.finfo(assigned.dtype).tiny)  # no image may have a share in a class
    return assigned.T @ values / total.unsqueeze(1)


def _variances(features: torch.Tensor, assigned: torch.Tensor, centres: torch.Tensor) -> torch.Tensor:
    """Return the mean square of the distance of *features* (B, D) to each class's centre (K, D), by dimension."""
    means, squares = _means(features, assigned), _means(features.square(), assigned)
    return (squares - 2 * centres * means + centres.square()).clamp(min=0)


def _anchor_variance(features: torch.Tensor, assigned: torch.Tensor, texts: torch.Tensor) -> torch.Tensor:
    """Return the variance (1, D) of all images around the texts (K, D), by the shares *assigned* (B, K)."""
    return assigned.mean(0, keepdim=True) @ _variances(features, assigned, texts)


def _log_densities(features: torch.Tensor, means: torch.Tensor, variances: torch.Tensor) -> torch.Tensor:
    """Return the logarithms (B, K) of the densities of *features* (B, D), up to a constant."""
    precisions = 1 / variances
    squares = features.square() @ precisions.T - 2 * features @ (means * precisions).T
    return -(squares + (means.square() * precisions).sum(1) + variances.log().sum(1)) / 2
