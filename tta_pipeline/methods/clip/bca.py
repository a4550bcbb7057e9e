"""BCA: CLIP's class embeddings, and the class prior of each embedding, become running means over the stream.

Zhou et al. 2025, "Bayesian test-time adaptation for vision-language models", section 3: the prediction is
P(y|x) = sum over m of P(y|m) P(m|x). The likelihood P(m|x) is the softmax of the scaled cosines between the image and
the class embeddings m, which start as the text features. The prior P(y|m) starts as one-hot. If the nearest embedding
is probable enough, the image enters the running mean of this embedding, and the prediction enters the running mean of
its prior.

The authors' program (buerzlh/Bayesian-Test-Time-Adaptation-for-Vision-Language-Models) was not available. This file
follows the paper's equations as quoted by others, and takes the constants of TTABC's program
(walawalagoose/TTABC), which uses the predicted class instead of the most probable embedding.
Images are processed in order, so the batch size does not change the predictions.
"""

from typing import Any

import torch
from torch import nn
from torch.nn.functional import normalize

from tta_pipeline.methods.clip.entries import BcaHyperparameters
from tta_pipeline.methods.clip.two_towers import TwoTowers
from tta_pipeline.methods.method import Method


class Bca(Method):
    """Predicts by class embeddings and their priors, then updates both; logits are logarithms of probabilities."""

    name = "bca"
    reads_only_features = True
    state_attrs = ("_embeddings", "_embedding_counts", "_priors", "_prior_counts")

    def __init__(self, model: nn.Module, hyperparameters: BcaHyperparameters, **kwargs: Any) -> None:
        super().__init__(model, hyperparameters, **kwargs)
        self._settings = hyperparameters
        self._towers = TwoTowers(model, self.name, num_classes=self.num_classes)
        self._embeddings = self._towers.text_features.clone()
        num_embeddings = len(self._embeddings)
        self._embedding_counts = self._embeddings.new_full((num_embeddings,), hyperparameters.embedding_count)
        self._priors = torch.eye(num_embeddings, device=self.device)
        self._prior_counts = self._embeddings.new_full((num_embeddings,), hyperparameters.prior_count)

    def _predict(self, images: torch.Tensor) -> torch.Tensor:
        with torch.inference_mode():
            self._forward(images)
            return torch.stack([self._predict_one(feature) for feature in self._towers.take_image_features()])

    def _predict_one(self, feature: torch.Tensor) -> torch.Tensor:
        """Return the logits (K,) for the image with *feature* (D,), and learn from it; the host never waits."""
        settings = self._settings
        likelihoods = (self._towers.scale * self._embeddings @ feature).softmax(0)
        posterior = likelihoods @ self._priors
        sureness, nearest = likelihoods.max(0, keepdim=True)
        is_moved, is_changed = sureness > settings.embedding_threshold, sureness > settings.prior_threshold
        _update_mean(self._embeddings, self._embedding_counts, nearest, feature, is_moved)
        _update_mean(self._priors, self._prior_counts, nearest, posterior, is_changed)
        moved = self._embeddings.index_select(0, nearest)
        self._embeddings.index_copy_(0, nearest, normalize(moved, dim=1))
        return posterior.clamp(min=torch.finfo(posterior.dtype).eps).log()


def _update_mean(
    means: torch.Tensor, counts: torch.Tensor, row: torch.Tensor, value: torch.Tensor, enters: torch.Tensor
) -> None:
    """Add *value* (N,) to the running mean in *row* (1,) of *means* (K, N) if *enters* (1,) is true."""
    mean, count = means.index_select(0, row), counts.index_select(0, row).unsqueeze(1)
    means.index_copy_(0, row, ((count * mean + value) / (count + 1)).where(enters, mean))
    counts.index_add_(0, row, enters.to(counts.dtype))
