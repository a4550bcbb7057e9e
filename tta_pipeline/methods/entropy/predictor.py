"""A learned predictor between features and classifier, used by the loss but not by the prediction.

The predictor is linear, has no bias, starts as the identity, and is trained by the method's optimiser.
"""

import torch
from torch import nn
from torch.nn.functional import linear

from tta_pipeline.methods.features import Features, find_classifier
from tta_pipeline.methods.stateful import Stateful


class Predictor(Stateful):
    """A predictor in front of the classifier of *model*; *optimizer* trains it with the learning rate *lr*."""

    state_attrs = ("_layer",)

    def __init__(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, *, num_classes: int, lr: float, method: str
    ) -> None:
        self._classifier = find_classifier(model, num_classes=num_classes, method=method)
        self._features = Features(self._classifier)
        size, device = self._classifier.in_features, self._classifier.weight.device
        self._layer = nn.Linear(size, size, bias=False, device="meta").to_empty(device=device)
        nn.init.eye_(self._layer.weight)
        optimizer.add_param_group({"params": list(self._layer.parameters()), "lr": lr})

    def logits(self) -> torch.Tensor:
        """Return the logits (B, K) of the latest forward pass, with the predictor applied to its features."""
        return linear(self._layer(self._features.take()), self._classifier.weight, self._classifier.bias)
