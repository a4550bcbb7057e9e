"""C-TPT: tunes the context as TPT does, and spreads the classes' text features, which keeps confidence calibrated.

Yoon et al. 2024, "C-TPT: calibrated test-time prompt tuning for vision-language models via text feature dispersion", as
in its authors' program. The loss is TPT's minus a weight times the dispersion: the mean distance of the text
features to their mean.
"""

from typing import Any

import torch
from torch import nn

from tta_pipeline.methods.clip.entries import CtptHyperparameters
from tta_pipeline.methods.clip.tpt import Tpt


class Ctpt(Tpt):
    """Tunes the context so that views agree and text features are far from each other."""

    name = "ctpt"

    def __init__(self, model: nn.Module, hyperparameters: CtptHyperparameters, **kwargs: Any) -> None:
        super().__init__(model, hyperparameters, **kwargs)
        self._dispersion_weight = hyperparameters.dispersion_weight

    def _loss(self, logits: torch.Tensor, text_features: torch.Tensor) -> torch.Tensor:
        dispersion: torch.Tensor = (text_features - text_features.mean(0)).norm(dim=1).mean()
        return super()._loss(logits, text_features) - self._dispersion_weight * dispersion
