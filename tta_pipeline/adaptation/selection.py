"""Selection of what to adapt: affine parameters of norm layers, and diverse samples."""

import re
from collections.abc import Mapping

import torch
from torch import nn

from tta_pipeline.adaptation.norm_layers import NORM_LAYERS
from tta_pipeline.adaptation.snapshot import Keeper
from tta_pipeline.errors import AdaptationError

_LAST_STAGE = re.compile(
    r"(^|\.)layer4(\.|$)"  # of a ResNet
    r"|(^|\.)(layers|stages)\.3\.(blocks|downsample)\."  # of a Swin or ConvNeXt of timm
    r"|^(network\.)*(norm|encoder\.ln|head\.norm)$"  # the norm layer after all blocks
)
_LAST_STAGE_OF_TORCHVISION = re.compile(r"^(network\.)*(features\.[67]\.|classifier\.0$)")
"""In a Swin or ConvNeXt of torchvision, whose layer norms tell them from other networks with such names."""
_BLOCK = re.compile(r"(?:^|\.)(?<!layers\.\d\.)(?<!stages\.\d\.)(?:blocks\.|encoder_layer_)(\d+)\.")
"""A block of a ViT, as timm and torchvision name it; those in a stage of another network are counted from 0 in each."""


def affine_parameters(model: nn.Module, method: str, *, skip_top: bool = False) -> list[nn.Parameter]:
    """Freeze *model* except weight and bias of its norm layers, and return these.

    With *skip_top* the top layers stay frozen too: the last stage of a ResNet, the last three of the twelve blocks of a
    ViT-B and the norm layer after them (Niu et al. 2023, "Towards stable test-time adaptation in dynamic wild world").
    By the same measure these are the last quarter of the blocks of another ViT, and the last stage of a Swin or
    ConvNeXt; networks with other names have no top layers.

    Raises:
        AdaptationError: *model* has no such parameters.
    """
    model.requires_grad_(False)
    layers = {name: layer for name, layer in model.named_modules() if isinstance(layer, NORM_LAYERS)}
    frozen = _top(layers) if skip_top else set()
    parameters = [
        parameter
        for name, layer in layers.items()
        if name not in frozen
        for parameter in layer.parameters(recurse=False)
    ]
    if not parameters:
        raise AdaptationError(
            f"{type(model).__name__} has no norm layer with weight and bias; {method} adapts nothing else: "
            "use a model with batch, layer or group norm"
        )
    for parameter in parameters:
        parameter.requires_grad_(True)
    return parameters


def _top(layers: Mapping[str, nn.Module]) -> set[str]:
    """Return the names of those *layers*, norm layers by name, that are in the top of their network."""
    of_transformers = {name for name, layer in layers.items() if isinstance(layer, nn.LayerNorm)}
    blocks = {name: int(found[1]) for name in of_transformers if (found := _BLOCK.search(name))}
    num_blocks = max(blocks.values(), default=-1) + 1
    return (
        {name for name in layers if _LAST_STAGE.search(name)}
        | {name for name in of_transformers if _LAST_STAGE_OF_TORCHVISION.search(name)}
        | {name for name, number in blocks.items() if number >= num_blocks - num_blocks // 4}
    )


class DiverseSamples(Keeper):
    """Chooses samples that are unlike those seen: EATA's redundancy filter.

    Niu et al. 2022, "Efficient test-time model adaptation without forgetting": a sample is kept if
    the absolute cosine of its probabilities and the moving average m of the kept samples' probabilities is below
    *d_margin*; then m = 0.9 m + 0.1 mean(kept). The first samples are kept, and initialise m.
    """

    keeps = ("_mean", "_is_empty")

    def __init__(self, *, num_classes: int, d_margin: float, device: torch.device) -> None:
        self._d_margin = d_margin
        # Zeros have cosine 0 with everything, so the first samples are not redundant.
        self._mean = torch.zeros(num_classes, device=device)
        self._is_empty = True

    def choose(self, probabilities: torch.Tensor, candidates: torch.Tensor) -> torch.Tensor:
        """Return indices (M,) of the kept among *candidates*, bool (B,), and add their *probabilities* (B, K) to m."""
        cosines = torch.cosine_similarity(self._mean, probabilities, dim=1)
        kept = (candidates & (cosines.abs() < self._d_margin)).nonzero().squeeze(1)
        if len(kept):
            momentum = 0.0 if self._is_empty else 0.9
            self._mean.lerp_(probabilities[kept].mean(0).to(self._mean.dtype), 1 - momentum)
            self._is_empty = False
        return kept
