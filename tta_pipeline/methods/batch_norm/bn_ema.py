"""BN-EMA: batch norm whose running statistics keep following the stream.

Each batch passes the network twice. The first pass normalises by the batch, as in training, and updates the running
statistics: running = (1 - momentum) * running + momentum * batch. The second pass normalises with the new running
statistics and predicts. The default momentum, 0.1, is the default of PyTorch's batch norm.
"""

from typing import Any

import torch
from torch.nn.modules.batchnorm import _BatchNorm

from tta_pipeline.methods.batch_norm.entries import BnEmaHyperparameters
from tta_pipeline.methods.method import Method
from tta_pipeline.methods.norm_layers import require_batch_norm


class BnEma(Method):
    """Updates the running statistics with each batch, and then predicts with them."""

    name = "bn_ema"
    state_attrs = ("model",)

    def __init__(self, model: torch.nn.Module, hyperparameters: BnEmaHyperparameters, **kwargs: Any) -> None:
        require_batch_norm(model, self.name)
        super().__init__(model.requires_grad_(False), hyperparameters, **kwargs)
        self._layers = [layer for layer in model.modules() if isinstance(layer, _BatchNorm)]
        for layer in self._layers:
            layer.momentum = hyperparameters.momentum

    def _predict(self, images: torch.Tensor) -> torch.Tensor:
        with torch.inference_mode():
            self._update_statistics(images)
            return self._forward(images)

    def _update_statistics(self, images: torch.Tensor) -> None:
        for layer in self._layers:
            layer.training = True  # not its submodules, which may be dropout
        self._forward(images)
        for layer in self._layers:
            layer.training = False
