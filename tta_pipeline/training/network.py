"""The small convolutional network with batch norm that a benchmark can train as its source model."""

import torch
from torch import nn


class SmallConvNet(nn.Sequential):
    """Three stages of two 3x3 convolutions with batch norm, each stage at half the resolution of the one before."""

    def __init__(self, *, num_classes: int, width: int) -> None:
        super().__init__(
            *_stage(3, width),
            *_stage(width, 2 * width),
            *_stage(2 * width, 4 * width),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(4 * width, num_classes),
        )


def _stage(channels_in: int, channels: int) -> list[nn.Module]:
    return [*_block(channels_in, channels), *_block(channels, channels), nn.MaxPool2d(2)]


def _block(channels_in: int, channels: int) -> list[nn.Module]:
    return [nn.Conv2d(channels_in, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels), nn.ReLU()]


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
