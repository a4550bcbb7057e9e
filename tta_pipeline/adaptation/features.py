"""Features of a classifier: the input of its last linear layer."""

import torch
from torch import nn

from tta_pipeline.errors import AdaptationError

_OF_DISTILLATION = "head_dist"
"""Name of the second classifier in timm's and the authors' distilled DeiT."""


def classifier(model: nn.Module, *, num_classes: int, method: str) -> nn.Linear:
    """Return the last linear layer of *model* with *num_classes* outputs.

    Raises:
        AdaptationError: *model* has no such layer, or a second classifier beside it, as a distilled DeiT of timm.
    """
    named = {
        name: layer
        for name, layer in model.named_modules()
        if isinstance(layer, nn.Linear) and layer.out_features == num_classes
    }
    layers = list(named.values())
    if not layers:
        raise AdaptationError(
            f"{type(model).__name__} has no linear layer with {num_classes} outputs; {method} expects one, whose input "
            "are the features: use another model"
        )
    if _OF_DISTILLATION in (name.rpartition(".")[2] for name in named):
        raise AdaptationError(
            f"{type(model).__name__} has a second classifier, {_OF_DISTILLATION}, and returns the mean of both; "
            f"{method} expects one, whose input are the features: use a model without a distillation token"
        )
    return layers[-1]


class Features:
    """Keeps the input of *layer* in the latest forward pass, (B, D), until it is taken."""

    def __init__(self, layer: nn.Linear) -> None:
        self._latest: torch.Tensor | None = None
        # The hook is permanent, since compiled code ignores hooks added later.
        layer.register_forward_pre_hook(self._keep)

    def take(self) -> torch.Tensor:
        """Return the features of the latest forward pass, (B, D), and release them."""
        assert self._latest is not None, "no forward pass since the last call"
        latest, self._latest = self._latest, None
        return latest

    def _keep(self, _: nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
        self._latest = inputs[0]
