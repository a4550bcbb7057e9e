"""ConvMixer (Trockman & Kolter 2022, "Patches are all you need?"), for small images."""

from typing import NoReturn

import torch
from torch import nn

from tta_pipeline.errors import EvaluationError
from tta_pipeline.models.architecture import Architecture
from tta_pipeline.models.model_kind import NetworkKind
from tta_plugin.sections import ConvMixerSection

_PATCH = 4
"""Height and width of a patch in pixels."""


class ConvMixer(NetworkKind[ConvMixerSection]):
    """The network for a section with `kind: conv_mixer`."""

    def architecture(self) -> Architecture:
        """Return the network without weights."""
        width, depth = self.section.width, self.section.depth
        return Architecture(
            name=f"ConvMixer, width {width}, depth {depth}",
            display_name=f"the ConvMixer of width {width} and depth {depth}",
            library=f"torch {torch.__version__}",
            make=lambda num_classes: make_network(num_classes=num_classes, width=width, depth=depth),
        )

    def weights(self, num_classes: int | None) -> NoReturn:
        """Raise an error: no weights are published."""
        del num_classes
        raise EvaluationError("conv_mixer has no weights; expected kind trained, with conv_mixer as its network")


def make_network(*, num_classes: int, width: int, depth: int) -> nn.Sequential:
    """Return the network, which takes normalised images, float (B, 3, H, W)."""
    return nn.Sequential(
        *_activated(nn.Conv2d(3, width, _PATCH, stride=_PATCH)),
        *(_Block(width) for _ in range(depth)),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(width, num_classes),
    )


class _Block(nn.Module):
    """Mixes the positions in each channel, then the channels at each position."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.places = nn.Sequential(*_activated(nn.Conv2d(width, width, 3, padding=1, groups=width)))
        self.channels = nn.Sequential(*_activated(nn.Conv2d(width, width, 1)))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        mixed: torch.Tensor = self.channels(images + self.places(images))
        return mixed


def _activated(convolution: nn.Conv2d) -> tuple[nn.Module, ...]:
    return convolution, nn.GELU(), nn.BatchNorm2d(convolution.out_channels)
