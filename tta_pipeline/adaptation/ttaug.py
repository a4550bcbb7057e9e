"""Test-time augmentation: the mean prediction over random views, without adaptation.

The baseline of Zhang et al. 2022, "MEMO: Test time robustness via adaptation and augmentation", section 4: logits of
the image and of AugMix views of it are averaged. As in MEMO, batch norm mixes source statistics with
those of one image and its views.
"""

from typing import Any

import torch
from torch import nn

from tta_pipeline.adaptation.augmentations import augmix_view
from tta_pipeline.adaptation.catalogue import ViewsHyperparameters
from tta_pipeline.adaptation.method import Method
from tta_pipeline.adaptation.norm_layers import use_mixed_statistics


class Ttaug(Method):
    """Averages logits over an image and random views of it."""

    name = "ttaug"

    def __init__(self, model: nn.Module, hyperparameters: ViewsHyperparameters, **kwargs: Any) -> None:
        use_mixed_statistics(model, alpha=1 / (hyperparameters.prior_strength + 1))
        super().__init__(model, hyperparameters, **kwargs)
        self._settings = hyperparameters

    def _predict(self, images: torch.Tensor) -> torch.Tensor:
        with torch.inference_mode():
            return torch.stack([self._predict_one(image) for image in images])

    def _predict_one(self, image: torch.Tensor) -> torch.Tensor:
        copies = image.expand(self._settings.num_augmentations, -1, -1, -1)
        views = augmix_view(copies, self.generator, crop=self._settings.crop)
        return self._forward(torch.cat([image.unsqueeze(0), views])).mean(0)
