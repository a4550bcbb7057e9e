"""Selection of what to adapt: affine parameters of norm layers, and diverse samples."""

import re

import torch
from torch import nn

from tta_pipeline.adaptation.norm_layers import NORM_LAYERS
from tta_pipeline.adaptation.snapshot import Keeper
from tta_pipeline.errors import AdaptationError

_TOP_LAYERS = re.compile(
    r"(^|\.)(layer4|blocks\.(9|10|11)|encoder_layer_(9|10|11))(\.|$)"  # stage 4 of a ResNet, the last of 12 ViT blocks
    r"|^(network\.)*(norm|encoder\.ln)$"  # the norm layer after the blocks, as timm and torchvision name it
)
"""Names of the modules that SAR and DeYO leave unchanged, as in their authors' code, plus torchvision's names."""


def affine_parameters(model: nn.Module, method: str, *, skip_top: bool = False) -> list[nn.Parameter]:
    """Freeze *model* except weight and bias of its norm layers, and return these.

    With *skip_top* the last stage of a ResNet and the last blocks of a ViT-B stay frozen too; networks with other names
    have no top layers (Niu et al. 2023, "Towards stable test-time adaptation in dynamic wild world").

    Raises:
        AdaptationError: *model* has no such parameters.
    """
    model.requires_grad_(False)
    parameters = [
        parameter
        for name, layer in model.named_modules()
        if isinstance(layer, NORM_LAYERS) and not (skip_top and _TOP_LAYERS.search(name))
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
