"""Norm: batch norm with the statistics of the current batch (BN-1).

Schneider et al. 2020, "Improving robustness against common corruptions by covariate shift adaptation", section 3, with
no weight on the source statistics; also Nado et al. 2020, "Evaluating prediction-time batch normalization".
"""

from typing import Any

import torch

from tta_pipeline.methods.method import Method
from tta_pipeline.methods.norm_layers import require_batch_norm, use_batch_statistics


class Norm(Method):
    """Normalises each batch by its own mean and variance, and keeps no state between batches."""

    name = "norm"

    def __init__(self, model: torch.nn.Module, *args: Any, **kwargs: Any) -> None:
        require_batch_norm(model, self.name)
        use_batch_statistics(model)
        super().__init__(model, *args, **kwargs)

    def _predict(self, images: torch.Tensor) -> torch.Tensor:
        with torch.inference_mode():
            return self._forward(images)
