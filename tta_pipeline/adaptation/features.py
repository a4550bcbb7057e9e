"""Features of a classifier: what its last linear layer is given."""

import torch
from torch import nn

from tta_pipeline.errors import AdaptationError


def classifier(model: nn.Module, *, num_classes: int, method: str) -> nn.Linear:
    """Return the last linear layer of *model* that gives *num_classes* numbers.

    Raises:
        AdaptationError: there is none.
    """
    layers = [layer for layer in model.modules() if isinstance(layer, nn.Linear) and layer.out_features == num_classes]
    if not layers:
        raise AdaptationError(
            f"{type(model).__name__} has no linear layer with {num_classes} outputs; {method} expects one, whose input "
            "are the features: use another model"
        )
    return layers[-1]


class Features:
    """Keeps what *layer* was given in the latest forward pass, (B, D), for as long as nobody took it."""

    def __init__(self, layer: nn.Linear) -> None:
        self._latest: torch.Tensor | None = None
        # For good, since compiled code does not see hooks that come later.
        layer.register_forward_pre_hook(self._keep)

    def take(self) -> torch.Tensor:
        """Return the features of the latest forward pass, (B, D), and let go of them."""
        assert self._latest is not None, "no forward pass since the last call"
        latest, self._latest = self._latest, None
        return latest

    def _keep(self, _: nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
        self._latest = inputs[0]
