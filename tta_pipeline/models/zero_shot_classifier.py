"""A zero-shot classifier: an image tower, such as CLIP's, and the text features of some classes."""

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn.functional import normalize


@dataclass(frozen=True)
class _SharedPrompts:
    """Holds the prompts that all copies of a classifier share, since nothing changes them."""

    prompts: nn.Module | None

    def __deepcopy__(self, _: object) -> "_SharedPrompts":
        return self


class ZeroShotClassifier(nn.Module):
    """An image tower, such as CLIP's, and a last linear layer whose rows are the text features of the classes.

    Methods for CLIP recognise this class by `tower`, `head`, `scale` and `prompts`.

    Args:
        tower: Maps normalised images (B, 3, H, W) to features (B, D).
        text_features: One row of length 1 for each class, (K, D).
        scale: Factor on the cosine of image and text features.
        bias: Summand of every logit, as in SigLIP (Zhai et al. 2023, section 3.2), which does not change the softmax;
            None: no bias.
        prompts: Maps a context to text features, such as `Prompts`; None: prompts cannot be tuned.
    """

    def __init__(
        self,
        tower: nn.Module,
        text_features: torch.Tensor,
        *,
        scale: float,
        bias: float | None = None,
        prompts: nn.Module | None = None,
    ) -> None:
        super().__init__()
        self.tower = tower
        self.scale = scale
        # No submodule: the text tower stays on the host, and its parameters do not adapt.
        self._shared = _SharedPrompts(prompts)
        num_classes, width = text_features.shape
        self.head = nn.Linear(width, num_classes, bias=bias is not None)
        self.head.weight = nn.Parameter(scale * text_features)
        if bias is not None:
            self.head.bias = nn.Parameter(torch.full((num_classes,), bias))

    @property
    def prompts(self) -> nn.Module | None:
        """Module that maps a context to text features, on the host and shared by all copies; copy before a change."""
        return self._shared.prompts

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return logits (B, K) for normalised *images*."""
        logits: torch.Tensor = self.head(normalize(self.tower(images), dim=-1))
        return logits
