"""A driver that keeps what it gave, for tests that compare logits after a whole pass."""

import torch

from tta_pipeline.benchmarks.protocols.driver import ProtocolDriver
from tta_pipeline.methods.method import Method


class Remembering(ProtocolDriver):
    """Driver that keeps the logits of every batch, and gives copies of them."""

    def __init__(self, method: Method) -> None:
        super().__init__(method)
        self.logits: list[torch.Tensor] = []

    def predict(self, images: torch.Tensor) -> torch.Tensor:
        """Return logits (B, K)."""
        self.logits.append(super().predict(images))
        return self.logits[-1].clone()
