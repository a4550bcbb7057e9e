"""This project's small network, which has no published weights."""

from typing import NoReturn

import torch
from torch import nn

from tta_pipeline.benchmarks.model_specs import SmallNetwork
from tta_pipeline.errors import EvaluationError
from tta_pipeline.models.architecture import Architecture
from tta_pipeline.models.model_kind import NetworkKind


class Small(NetworkKind[SmallNetwork]):
    """The small network, which is always trained."""

    def architecture(self) -> Architecture:
        """Return the network of the section's width."""
        width = self.section.width
        return Architecture(
            name=f"tta_pipeline SmallConvNet, width {width}",
            display_name=f"the small network of width {width}",
            library=f"torch {torch.__version__}",
            make=lambda num_classes: SmallConvNet(num_classes=num_classes, width=width),
        )

    def weights(self, num_classes: int | None) -> NoReturn:
        """Raise an error, since there are no weights."""
        del num_classes
        raise EvaluationError(
            "Networks of kind small have no pretrained weights; expected another kind to fine-tune: choose one"
        )


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
