"""BN-alpha: batch norm with a mixture of source and batch statistics.

Schneider et al. 2020, "Improving robustness against common corruptions by covariate shift adaptation", section 3: mean
and variance are (1 - alpha) * source + alpha * batch, with alpha = n / (N + n) for batches of n images and a prior
strength N. The default alpha, 0.1, is the value that the benchmark of Doebler et al. uses for a batch of one.
"""

from typing import Any

import torch

from tta_pipeline.methods.batch_norm.entries import BnAlphaHyperparameters
from tta_pipeline.methods.method import Method
from tta_pipeline.methods.norm_layers import require_batch_norm, use_mixed_statistics


class BnAlpha(Method):
    """Mixes source statistics with the current batch's, and keeps no state between batches."""

    name = "bn_alpha"

    def __init__(self, model: torch.nn.Module, hyperparameters: BnAlphaHyperparameters, **kwargs: Any) -> None:
        require_batch_norm(model, self.name)
        use_mixed_statistics(model, alpha=hyperparameters.alpha)
        super().__init__(model, hyperparameters, **kwargs)

    def _predict(self, images: torch.Tensor) -> torch.Tensor:
        with torch.inference_mode():
            return self._forward(images)
