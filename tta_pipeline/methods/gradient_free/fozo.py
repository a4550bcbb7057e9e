"""FOZO: learns prompts for a ViT by the slope of a loss between two forward passes, and shifts its features.

Wang and Wang 2026, "FOZO: Forward-only zeroth-order prompt optimization for test-time adaptation", section 4:

- Zeroth-order prompts (algorithm 1, equations 5 to 7): for each random direction Z, drawn from a normal distribution,
  the batch is predicted with the prompts P + epsilon Z and P - epsilon Z. The slope between both losses, times Z,
  stands for the gradient; P takes a step against the mean over the directions.
- The loss (equations 13 to 15) is the sum of the entropies plus lambda B / 64 times FOA's discrepancy of the class
  tokens, summed over the shallow and the deep layers.
- Dynamic perturbation (equation 12): if the loss of a batch is above tau times its moving average, epsilon starts over;
  otherwise it decays.

The prediction is that of the candidate with the lowest loss. What the paper leaves open follows the authors' program
for the published numbers (eVI-group-SCU/FOZO `5bc3e5c`):

- Class tokens are read as in FOA (`foa`). Prompts start as FOA's first candidate.
- The learning rate is 0.7 times the previous one plus 0.1, or 0.1 if epsilon starts over; a batch's step has the rate
  that follows from its own loss. So the rate tends to a third.
- Features shift as in FOA (`aligned_method`), and the entropy is that of the shifted prediction. The program adds the
  mean features of both candidates, where FOA takes their average. So the shift also removes the source's mean from the
  features, as NEO removes the stream's.
"""

from typing import Any, NamedTuple

import torch
from torch import nn

from tta_pipeline.methods.augmentations import copy_to_device
from tta_pipeline.methods.gradient_free.aligned_method import AlignedMethod, summed_loss
from tta_pipeline.methods.gradient_free.entries import FozoHyperparameters
from tta_pipeline.methods.tokens import ClassTokens, Tokens

_LEAST_SCALE, _LARGEST_SCALE, _DECAY_OF_SCALE = 0.2, 0.5, 0.9
_LEAST_LR, _DECAY_OF_LR = 0.1, 0.7
_MOMENTUM_OF_LOSS = 0.9
_TAU = 1.05
"""Ratio to the moving average above which a loss starts epsilon over."""


class Fozo(AlignedMethod):
    """Moves prompts of a ViT against the slope of the loss along random directions, and shifts the features."""

    name = "fozo"
    state_attrs = ("_prompts", "_scale", "_lr", "_mean_loss")

    def __init__(self, model: nn.Module, hyperparameters: FozoHyperparameters, **kwargs: Any) -> None:
        self._settings = hyperparameters
        self._tokens = Tokens(model, self.name)
        super().__init__(model, hyperparameters, inner=ClassTokens(self._tokens.attentions[1:]).latest, **kwargs)
        self._prompts = torch.zeros(hyperparameters.num_prompts, self._tokens.width)
        self._scale = hyperparameters.perturbation_scale
        self._lr = hyperparameters.lr
        self._mean_loss: float | None = None

    @torch.no_grad()
    def _predict(self, images: torch.Tensor) -> torch.Tensor:
        if not self._num_batches:
            self._tokens.draw_prompts(self._prompts, self.generator)
        directions = torch.stack([self._draw_direction() for _ in range(self._settings.num_directions)])
        steps = self._scale * directions
        candidates = torch.stack([self._prompts + steps, self._prompts - steps], 1).flatten(0, 1)
        (prompts,) = copy_to_device([candidates], self.device)
        found = [self._evaluate_prompts(images, each) for each in prompts]
        # The host waits for the device, since the losses decide the prompts and the prediction.
        losses = torch.stack([each.loss for each in found]).cpu()
        best = int(losses.nan_to_num(torch.inf).argmin())  # `argmin` takes a NaN for the smallest number.
        slopes = (losses[0::2] - losses[1::2]) / (2 * self._scale)
        self._set_rates(float(losses[best]))
        self._prompts -= self._lr * (slopes.view(-1, 1, 1) * directions).mean(0)
        self._follow(2 * torch.stack([each.mean for each in found]).mean(0))
        return found[best].logits

    def _draw_direction(self) -> torch.Tensor:
        return torch.randn(self._prompts.shape, generator=self.generator)

    def _evaluate_prompts(self, images: torch.Tensor, prompts: torch.Tensor) -> "_Candidate":
        """Return what *prompts* (N, D) make of *images*."""
        with self._tokens.prompted(prompts):
            self._forward(images)
        activations = self._activations()
        features = self._features_of(activations)
        logits = self._classify_shifted(features)
        loss = summed_loss(logits, self._squared_gaps(activations), weight=self._settings.fitness_lambda)
        return _Candidate(loss, logits, features.mean(0))

    def _set_rates(self, loss: float) -> None:
        """Set perturbation scale and learning rate from the *loss* of the batch."""
        momentum = 1.0 if self._mean_loss is None else 1 - _MOMENTUM_OF_LOSS
        self._mean_loss = (1 - momentum) * (self._mean_loss or 0.0) + momentum * loss
        if loss > _TAU * self._mean_loss:
            self._scale, self._lr = _LARGEST_SCALE, _LEAST_LR
        else:
            self._scale = max(_LEAST_SCALE, _DECAY_OF_SCALE * self._scale)
            self._lr = _DECAY_OF_LR * self._lr + _LEAST_LR


class _Candidate(NamedTuple):
    """Loss, a scalar, logits (B, K), and mean feature (D,) of a batch with one candidate's prompts."""

    loss: torch.Tensor
    logits: torch.Tensor
    mean: torch.Tensor
