"""Domains of a stream, described by mean and variance of the inputs of an early layer (IMSE, ZOA)."""

import torch
from torch import nn

from tta_pipeline.methods.stateful import StateDict, Stateful

_MOMENTUM = 0.8
_LEAST_VARIANCE = 1e-8


class InputMoments:
    """Keeps mean and variance of each channel of the inputs of *layer* in the latest forward pass.

    Channels are the last axis of tokens, (B, N, C) or (B, H, W, C), and otherwise the second one. The first
    *num_prefix* tokens do not count.
    """

    def __init__(self, layer: nn.Module, *, num_prefix: int = 0) -> None:
        self._num_prefix = num_prefix
        self._latest = torch.empty(0)
        # The hook is permanent, since compiled code ignores hooks added later.
        layer.register_forward_pre_hook(self._keep)

    def _keep(self, layer: nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
        values = inputs[0].detach().float()
        has_last = isinstance(layer, nn.LayerNorm) and values.shape[-1] == layer.normalized_shape[-1]
        if values.dim() > 3 and not has_last:
            values = values.movedim(1, -1)
        rows = values[:, self._num_prefix :].flatten(0, -2)
        self._latest = torch.stack([rows.mean(0), rows.var(0).clamp(min=_LEAST_VARIANCE)])

    def latest(self) -> torch.Tensor:
        """Return mean and variance over images and positions, (2, D)."""
        return self._latest


class Domain(Stateful):
    """Moments of the stream's present domain, (2, D), which follow its batches; None before the first batch."""

    def __init__(self, device: torch.device) -> None:
        self.moments: torch.Tensor | None = None
        self._device = device

    def follow(self, moments: torch.Tensor) -> None:
        """Add the *moments* of a batch."""
        present = self.moments
        self.moments = moments.clone() if present is None else present.lerp(moments, 1 - _MOMENTUM)

    def differs(self, moments: torch.Tensor, *, by: float) -> bool:
        """Return whether the *moments* of a batch diverge from the domain's by more than *by*; the host waits."""
        return self.moments is not None and float(divergence(self.moments, moments)) > by

    def state_dict(self) -> StateDict:
        """Return a copy; whether there are moments changes over a stream."""
        return {"moments": None if self.moments is None else self.moments.clone()}

    def load_state_dict(self, state: StateDict) -> None:
        """Restore a copy of the tensor in *state*."""
        moments = state["moments"]
        self.moments = None if moments is None else moments.to(self._device, copy=True)


def divergence(domain: torch.Tensor, batch: torch.Tensor) -> torch.Tensor:
    """Return the mean over channels of the divergence in both directions between two normal distributions, (2, D)."""
    (mean, variance), (its_mean, its_variance) = domain, batch
    squared = (mean - its_mean) ** 2
    apart: torch.Tensor = (variance + squared) / (2 * its_variance) + (its_variance + squared) / (2 * variance) - 1
    return apart.mean()
