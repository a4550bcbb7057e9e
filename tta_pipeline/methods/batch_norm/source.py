"""Source: the unchanged source model, with the running statistics of batch norm from training (BN-0)."""

import torch

from tta_pipeline.methods.method import Method


class Source(Method):
    """Predicts with the source model in evaluation mode; the baseline of every method."""

    reads_only_features = True
    name = "source"

    def _predict(self, images: torch.Tensor) -> torch.Tensor:
        with torch.inference_mode():
            return self._forward(images)
