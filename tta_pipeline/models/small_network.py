"""The small convolutional network with batch norm that a benchmark can train as its source model."""

import torch
from torch import nn

from tta_pipeline.benchmarks.model_specs import SmallNetwork
from tta_pipeline.models.architecture import Architecture


class SmallConvNet(nn.Sequential):
    """Three stages of two 3x3 convolutions with batch norm; each stage halves the resolution."""

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


def small_architecture(spec: SmallNetwork) -> Architecture:
    """Return the small network of the width in *spec*."""
    return Architecture(
        name=f"tta_pipeline SmallConvNet, width {spec.width}",
        display_name=f"the small network of width {spec.width}",
        library=f"torch {torch.__version__}",
        make=lambda num_classes: SmallConvNet(num_classes=num_classes, width=spec.width),
    )
