"""TPT: tunes the words before the class names to each image, so that views of it agree.

Shu et al. 2022, "Test-time prompt tuning for zero-shot generalization in vision-language models", section 3.2 and
equation 3. The context starts as "a photo of a" for each image, and nothing else changes.
"""

from typing import Any

import torch
from torch import nn

from tta_pipeline.methods.clip.entries import TunedTextsHyperparameters
from tta_pipeline.methods.clip.tuned_texts import TunedTexts


class Tpt(TunedTexts):
    """Tunes the context of CLIP's prompts to each image separately, and then predicts the image."""

    name = "tpt"

    def __init__(self, model: nn.Module, hyperparameters: TunedTextsHyperparameters, **kwargs: Any) -> None:
        super().__init__(model, hyperparameters, **kwargs)
        self._prompts = self._towers.prompts(self.device)

    def _untuned(self) -> torch.Tensor:
        return self._prompts.get_buffer("context").clone()

    def _text_features(self, tuned: torch.Tensor) -> torch.Tensor:
        features: torch.Tensor = self._prompts(tuned)
        return features
