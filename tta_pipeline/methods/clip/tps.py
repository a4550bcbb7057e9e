"""TPS: shifts the text features of the classes for each image, so that views of it agree.

Sui et al. 2025, "Just shift it: test-time prototype shifting for zero-shot generalization with vision-language models",
as in its authors' program. A vector for each class, zero at first, is added to its text feature, and the sum gets
length 1 again. The vectors are tuned to each image as TPT tunes its context, so the text tower is not needed.
"""

import torch
from torch.nn.functional import normalize

from tta_pipeline.methods.clip.tuned_texts import TunedTexts


class Tps(TunedTexts):
    """Tunes a shift of each class's text feature to each image separately, and then predicts the image."""

    name = "tps"

    def _untuned(self) -> torch.Tensor:
        return torch.zeros_like(self._towers.text_features)

    def _text_features(self, tuned: torch.Tensor) -> torch.Tensor:
        return normalize(self._towers.text_features + tuned, dim=1)
