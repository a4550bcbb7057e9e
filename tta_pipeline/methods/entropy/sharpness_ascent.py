"""The ascent step of sharpness-aware minimisation (SAM), and the return from it."""

from collections.abc import Sequence

import torch
from torch import nn
from torch.nn.utils import get_total_norm


class Ascent:
    """Moves parameters to a nearby point of approximately the highest loss, where the step's gradient is computed.

    Foret et al. 2021, "Sharpness-aware minimization for efficiently improving generalization", equation 2 with p = 2:
    w + rho * g / ||g||, with the norm over all parameters together.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], *, rho: float) -> None:
        self._parameters: list[torch.Tensor] = list(parameters)
        self._originals = [torch.empty_like(parameter) for parameter in parameters]
        self._rho = rho

    @torch.no_grad()
    def climb(self) -> None:
        """Move the parameters uphill by rho along the gradients, and drop the gradients."""
        torch._foreach_copy_(self._originals, self._parameters)
        moved = [parameter for parameter in self._parameters if parameter.grad is not None]
        gradients = [parameter.grad for parameter in moved if parameter.grad is not None]
        torch._foreach_mul_(gradients, self._rho / (get_total_norm(gradients) + 1e-12))
        torch._foreach_add_(moved, gradients)
        for parameter in moved:
            parameter.grad = None

    @torch.no_grad()
    def restore(self) -> None:
        """Move the parameters back to their values before `climb`; the gradients stay."""
        torch._foreach_copy_(self._parameters, self._originals)
