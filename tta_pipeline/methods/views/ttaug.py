"""TTAug: test-time augmentation, the mean prediction over an image and random views of it, without adaptation.

The baseline of Zhang et al. 2022, "MEMO: Test time robustness via adaptation and augmentation", section 4: average
the logits of the image and its AugMix views. As in MEMO, batch norm mixes source statistics with the statistics of the
image and its views. Views of many images are drawn at once, by a generator on the host.
"""

from typing import Any

import torch
from torch import nn

from tta_pipeline.methods.method import Method
from tta_pipeline.methods.norm_layers import use_mixed_statistics
from tta_pipeline.methods.views.augmix import augmix_views
from tta_pipeline.methods.views.entries import TtaugHyperparameters


class Ttaug(Method):
    """Averages logits over an image and random views of it."""

    name = "ttaug"

    def __init__(self, model: nn.Module, hyperparameters: TtaugHyperparameters, **kwargs: Any) -> None:
        use_mixed_statistics(model, alpha=1 / (hyperparameters.prior_strength + 1))
        super().__init__(model, hyperparameters, **kwargs)
        self._settings = hyperparameters
        self.generator = torch.Generator().manual_seed(self.seed)  # AugMix draws on the host.

    def _predict(self, images: torch.Tensor) -> torch.Tensor:
        settings = self._settings
        with torch.inference_mode():
            views = augmix_views(images, self.generator, num_views=settings.num_augmentations, crop=settings.crop)
            pairs = zip(images, views, strict=True)
            return torch.stack(
                [self._forward(torch.cat([image.unsqueeze(0), of_it])).mean(0) for image, of_it in pairs]
            )
