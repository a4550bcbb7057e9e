"""Normalisation as the first layer of a network."""

import torch
from torch import nn


class Normalized(nn.Module):
    """A classifier of images in [0, 1] that normalises by channel, then applies *network*."""

    def __init__(self, network: nn.Module, *, mean: tuple[float, ...], std: tuple[float, ...]) -> None:
        super().__init__()
        self.mean: torch.Tensor
        self.std: torch.Tensor
        self.network = network
        self.register_buffer("mean", torch.tensor(mean).view(1, -1, 1, 1))
        self.register_buffer("std", torch.tensor(std).view(1, -1, 1, 1))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return logits (B, K) for *images*, float (B, 3, H, W) in [0, 1]."""
        logits: torch.Tensor = self.network((images - self.mean) / self.std)
        return logits
