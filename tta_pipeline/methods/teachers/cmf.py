"""CMF: ROID, with weights averaged with a Kalman-filtered model instead of the source model.

Lee and Chang 2024, "Continual momentum filtering on parameter space for online test-time adaptation", section 3. A
Kalman filter estimates a hidden model over the stream. Its state decays towards the source model, and its observations
are the adapted models. After each step, where v is the variance of the hidden model (0 at first):

- predict: hidden = alpha hidden + (1 - alpha) source, v = alpha^2 v + q;
- update: beta = r / (v + r) with r = 1 - q, hidden = beta hidden + (1 - beta) theta, v = beta v;
- ensemble: theta = gamma theta + (1 - gamma) hidden.

Constants are from the authors' code: alpha and gamma are 0.99; q is 0.005 for 38400 adapted parameters (a
ViT-B's), and in proportion for other numbers; beta is at least 0.89, and 1 from 0.9999 on. Losses, weights and prior
correction are ROID's.
"""

from typing import Any

import torch
from torch import nn

from tta_pipeline.methods.teachers.entries import CmfHyperparameters
from tta_pipeline.methods.teachers.roid import CertaintyMethod


class Cmf(CertaintyMethod):
    """ROID with a Kalman-filtered hidden model."""

    name = "cmf"
    state_attrs = ("_hidden", "_variance")

    def __init__(self, model: nn.Module, hyperparameters: CmfHyperparameters, **kwargs: Any) -> None:
        super().__init__(model, hyperparameters, **kwargs)
        self._filter = hyperparameters
        self._q = hyperparameters.q * sum(parameter.numel() for parameter in self._adapted) / 38400
        self._hidden = [parameter.clone() for parameter in self._source]
        self._variance = 0.0

    @torch.no_grad()
    def _average_weights(self) -> None:
        """Filter the hidden model, and move the adapted parameters a little towards it."""
        torch._foreach_lerp_(self._hidden, self._source, 1 - self._filter.alpha)
        torch._foreach_lerp_(self._hidden, self._adapted, 1 - self._update_gain())
        torch._foreach_lerp_(self._adapted, self._hidden, 1 - self._filter.gamma)

    def _update_gain(self) -> float:
        """Return beta, and advance the filter's variance by one step."""
        self._variance = self._filter.alpha**2 * self._variance + self._q
        noise = 1 - self._q
        beta = max(noise / (self._variance + noise), 0.89)
        beta = beta if beta < 0.9999 else 1.0
        self._variance *= beta
        return beta
