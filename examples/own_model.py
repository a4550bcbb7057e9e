"""Evaluate your own model: any torch module that takes images in [0, 1] and normalises them itself.

    python examples/own_model.py data/digits_c/shards/contrast/5

prints

    source: error 89.0%, 600 samples, weights 4985b1b10202
"""

import sys

import torch
from torch import nn

import tta_pipeline as tta


class Mine(nn.Module):
    """A linear classifier on the mean colours of a 4 x 4 grid."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(48, num_classes))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return logits (B, K) for images, float (B, 3, H, W) in [0, 1]."""
        return self.layers((images - 0.5) / 0.25)


def main(folder: str) -> None:
    """Evaluate the model without adaptation."""
    torch.manual_seed(0)
    cell = tta.open_shards(folder)
    method = tta.build("source", Mine(len(cell.classes)), num_classes=len(cell.classes))
    result = tta.evaluate(method, cell, batch_size=64)
    weights = result.setup.weights_sha256
    print(f"source: error {result.error:.1%}, {result.scores.num_samples} samples, weights {weights[:12]}")


if __name__ == "__main__":
    main(*sys.argv[1:])
