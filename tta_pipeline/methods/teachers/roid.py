"""ROID: certainty and diversity weights, weight averaging with the source model, and class prior correction.

Marsden et al. 2024, "Universal test-time adaptation through weight ensembling, diversity weighting, and prior
correction", section 4:

- Weights: w = exp(d * c / T) with T = 1/3. The diversity is d = 1 - cos(p, m), where m is the moving average (0.9) of
  the batches' mean probabilities; the certainty is c = -entropy. Both are scaled to [0, 1] within the batch. Samples
  below the mean diversity are left out.
- Loss: w times the soft likelihood ratio, -sum_k p_k log(p_k / (1 - p_k)), with probabilities clipped at 0.99 and 1e-5
  within the logarithm, plus w times the symmetric cross entropy with the prediction for a random view. The loss is
  summed over the kept samples and divided by the size of the batch.
- Weight ensembling: after the step, theta = 0.99 theta + 0.01 theta_source.
- Prior correction: probabilities times the smoothed mean q = (mean(p) + s) / (1 + s K) of the batch, with
  s = max(1/B, 1/K) / max(mean(p)).

Constants are from the authors' code, which differs from this file in two points. It multiplies logits by q, which
scales them down by about K, so that no confidence is left. Here probabilities are multiplied, as the derivation by
Bayes' rule requires, unless `prior_correction` is "logits". The authors' code also divides by the nominal batch size;
here it is the actual size.
"""

from abc import abstractmethod
from typing import Any, ClassVar

import torch
from torch import nn

from tta_pipeline.methods.losses import entropy, symmetric_cross_entropy
from tta_pipeline.methods.teachers.batch_views import roid_batch_view
from tta_pipeline.methods.teachers.entries import CertaintyHyperparameters, RoidHyperparameters
from tta_pipeline.methods.teachers.teacher_views import roid_view
from tta_pipeline.methods.teachers.view_method import ViewMethod


class CertaintyMethod(ViewMethod):
    """Common part of ROID and CMF: everything except the model that weights are averaged with."""

    state_attrs: ClassVar[tuple[str, ...]] = ("_marginal",)
    views = {"image": roid_view, "batch": roid_batch_view}  # noqa: RUF012 - a ClassVar of the base class

    def __init__(self, model: nn.Module, hyperparameters: CertaintyHyperparameters, **kwargs: Any) -> None:
        super().__init__(model, hyperparameters, **kwargs)
        self._weighting = hyperparameters
        self._adapted: list[torch.Tensor] = [
            parameter for parameter in self.model.parameters() if parameter.requires_grad
        ]
        self._source = [parameter.detach().clone() for parameter in self._adapted]
        self._marginal = torch.full((self.num_classes,), 1 / self.num_classes, device=self.device)

    @abstractmethod
    def _average_weights(self) -> None:
        """Move the adapted parameters back slightly after a step."""

    def _adapt(self, images: torch.Tensor) -> torch.Tensor:
        logits = self._forward(images).float()
        weights, is_kept = self._weigh_samples(logits.detach())
        # The host waits for the indices: the view of the kept samples is a separate batch, with its own statistics.
        kept = is_kept.nonzero().squeeze(1)
        of_view = self._forward_some(self._view(images[kept])).float()
        loss = self._weighted_loss(logits[kept], of_view, weights[kept]) / len(images)
        self._step(loss, num_samples=len(images) + len(kept), num_adapted=len(kept))
        self._average_weights()
        return self._correct_prior(logits.detach())

    def _weighted_loss(self, logits: torch.Tensor, of_view: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        """Return the sum of the weighted losses of the kept samples, from the logits (M, K) of images and views."""
        return (weights * (soft_likelihood_ratio(logits) + symmetric_cross_entropy(of_view, logits))).sum()

    def _correct_prior(self, logits: torch.Tensor) -> torch.Tensor:
        """Return *logits* (B, K) corrected by the class prior of their batch."""
        prior = smoothed_prior(logits)
        return logits * prior if self._weighting.prior_correction == "logits" else logits + prior.log()

    @torch.no_grad()
    def _weigh_samples(self, logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return weights (B,) and a mask (B,) of the samples to adapt on, and update the moving average."""
        probabilities = logits.softmax(1)
        diversity = _scale_to_unit(1 - torch.cosine_similarity(self._marginal, probabilities, dim=1))
        certainty = _scale_to_unit(-entropy(logits))
        self._marginal.lerp_(probabilities.mean(0), 1 - self._weighting.momentum_probs)
        is_kept = ~(diversity < diversity.mean())  # all, if a collapse makes it NaN
        return (diversity * certainty / self._weighting.temperature).exp(), is_kept


class Roid(CertaintyMethod):
    """Adapts the affine parameters of all norm layers on certain and diverse samples, close to the source model."""

    name = "roid"

    def __init__(self, model: nn.Module, hyperparameters: RoidHyperparameters, **kwargs: Any) -> None:
        super().__init__(model, hyperparameters, **kwargs)
        self._momentum = hyperparameters.momentum_src

    @torch.no_grad()
    def _average_weights(self) -> None:
        torch._foreach_lerp_(self._adapted, self._source, 1 - self._momentum)


def soft_likelihood_ratio(logits: torch.Tensor) -> torch.Tensor:
    """Return -sum_k p_k log(p_k / (1 - p_k)) of *logits* (B, K), shape (B,)."""
    probabilities = logits.softmax(1).clamp(max=0.99)
    return -(probabilities * (probabilities / (1 - probabilities) + 1e-5).log()).sum(1)


def smoothed_prior(logits: torch.Tensor) -> torch.Tensor:
    """Return the class prior, (K,), of the batch of *logits* (B, K), smoother for fewer samples."""
    count, num_classes = logits.shape
    prior = logits.softmax(1).mean(0)
    smoothing = max(1 / count, 1 / num_classes) / prior.max()
    return (prior + smoothing) / (1 + smoothing * num_classes)


def _scale_to_unit(values: torch.Tensor) -> torch.Tensor:
    """Scale *values* (B,) to [0, 1]; if all are equal, as in a batch of one, to 0."""
    low, high = values.aminmax()
    return (values - low) / (high - low).clamp(min=torch.finfo(values.dtype).tiny)
