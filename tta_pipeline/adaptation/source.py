"""The source model as it is (BN-0)."""

from typing import Any

import torch

from tta_pipeline.adaptation.method import Method


class Source(Method):
    """Predicts with the source model in evaluation mode; the lower bound every method is held against."""

    def __init__(self, model: torch.nn.Module, *args: Any, **kwargs: Any) -> None:
        super().__init__(model.eval(), *args, **kwargs)

    def _predict(self, images: torch.Tensor) -> torch.Tensor:
        with torch.inference_mode():
            return self._forward(images)
