"""ASR: resets the layers near the output when predictions concentrate on few classes.

Lim et al. 2026, "When and where to reset matters for long-term test-time adaptation":

- When: the concentration of a batch is C = sum_k p_k log p_k, where p is the softmax of its mean logits. A reset
  follows if C is above its moving average A; otherwise A = mu A + (1 - mu) C. A starts at -ln(alpha K) with
  alpha = 0.5, and returns to this value at each reset.
- Where: the last share r = r_0 + lambda_r (C - A), at most 1, of the adapted parameters returns to the source model;
  the parameters before them do not change. r_0 = 0.5, lambda_r = 20. Optimiser and memory start over.
- Penalty: lambda_F sum_i F_i (theta_i - m_i)^2 is added to the loss. Between two resets, the parameters and the squared
  gradients of the method's own loss are averaged over all updates; at a reset these averages enter the moving averages
  m and F, with momentum 0.9. Before the first reset there is no penalty.
- Rates: the share phi of a batch that the source model labels differently sets mu = 1 - mu_0 + mu_0 phi, and for the
  next batch lambda_F = lambda_0 phi^2; mu_0 = 0.15, lambda_0 = 5.

The constants are from the authors' code. Here the gradient of the penalty is added directly to the gradient of the
loss, since F needs the loss's own gradient; the authors run backward twice instead. A batch without an update does not
enter the averages.
"""

import math
from collections.abc import Callable
from functools import partial

import torch
from torch import nn

from tta_pipeline.methods.ema import frozen_copy
from tta_pipeline.methods.entropy.entries import EntropyHyperparameters
from tta_pipeline.methods.entropy.reset_rule import ResetRule
from tta_pipeline.methods.losses import entropy

_MOMENTUM = 0.9
"""Weight of the values before a reset in the moving averages F and m."""


class AdaptiveReset(ResetRule):
    """Resets the last part of the adapted parameters, in the order of the network, when predictions concentrate."""

    state_attrs = (
        "_average", "_penalty", "_num_updates", "_num_resets", "_squares", "_sums", "_importance", "_remembered",
    )  # fmt: skip

    def __init__(
        self,
        start_over: Callable[[], None],
        *,
        model: nn.Module,
        forward: Callable[..., torch.Tensor],
        num_classes: int,
        settings: EntropyHyperparameters,
    ) -> None:
        super().__init__(start_over, model=model, forward=forward, num_classes=num_classes, settings=settings)
        self._parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self._predict_by_source = partial(forward, model=frozen_copy(model))
        self._first_average = -math.log(settings.asr_alpha * num_classes)
        self._average = self._first_average
        self._penalty = 0.0
        self._num_updates = 0
        self._num_resets = 0
        self._squares, self._sums, self._importance, self._remembered = (
            [torch.zeros_like(parameter) for parameter in self._parameters] for _ in range(4)
        )

    @torch.no_grad()
    def before_update(self) -> None:
        """Add gradients and parameters to the averages, and the penalty's gradient to the gradients."""
        gradients = [_ensure_gradient(parameter) for parameter in self._parameters]
        parameters = list[torch.Tensor](self._parameters)
        torch._foreach_addcmul_(self._squares, gradients, gradients)
        torch._foreach_add_(self._sums, parameters)
        self._num_updates += 1
        if self._num_resets:
            remembered = zip(parameters, self._remembered, self._importance, strict=True)
            pulls = [(now - then) * importance for now, then, importance in remembered]
            torch._foreach_add_(gradients, pulls, alpha=2 * self._penalty)

    @torch.no_grad()
    def after_step(self, images: torch.Tensor, logits: torch.Tensor) -> None:
        """Reset some parameters if the predictions for this batch are more concentrated than earlier ones."""
        by_source = self._predict_by_source(images)
        concentration = -entropy(logits.float().mean(0, keepdim=True)).squeeze(0)
        differing = (logits.argmax(1) != by_source.argmax(1)).float().mean()
        # The host waits for the device: it decides about a reset.
        concentrated, phi = torch.stack([concentration, differing]).tolist()
        self._penalty = self._settings.asr_lambda_0 * phi**2
        if concentrated > self._average:
            excess = concentrated - self._average
            self._reset(min(self._settings.asr_r_0 + self._settings.asr_lambda_r * excess, 1.0))
        else:
            momentum = 1 - self._settings.asr_mu_0 + self._settings.asr_mu_0 * phi
            self._average = momentum * self._average + (1 - momentum) * concentrated

    def _reset(self, share: float) -> None:
        """Reset the last *share* of the parameters, and all other state of the method except this rule's averages."""
        self._update_moving_averages()
        self._average = self._first_average
        own = self.state_dict()
        kept = self._parameters[: math.ceil((1 - share) * len(self._parameters))]
        values = [parameter.clone() for parameter in kept]
        self._start_over()
        for parameter, value in zip(kept, values, strict=True):
            parameter.copy_(value)
        self.load_state_dict(own)

    def _update_moving_averages(self) -> None:
        """Add the averages since the last reset to the moving averages over all resets."""
        if not self._num_updates:
            return
        weight = 1 - _MOMENTUM if self._num_resets else 1.0
        for average, total in ((self._importance, self._squares), (self._remembered, self._sums)):
            torch._foreach_lerp_(average, [values / self._num_updates for values in total], weight)
            torch._foreach_zero_(total)
        self._num_updates = 0
        self._num_resets += 1


def _ensure_gradient(parameter: nn.Parameter) -> torch.Tensor:
    if parameter.grad is None:  # it did not enter the loss
        parameter.grad = torch.zeros_like(parameter)
    return parameter.grad
