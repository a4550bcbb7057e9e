"""MEMO: adapts to each image separately, so that all its views get the same prediction.

Zhang et al. 2022, "MEMO: Test time robustness via adaptation and augmentation", section 3. For each image, the model
takes one step on all parameters, predicts the image, and is reset. The loss is the entropy of the mean probabilities
over AugMix views of the image (equation 3). Batch norm mixes source statistics, of prior strength 16, with its
input's, with alpha = 1 / (16 + 1): the input is the image alone for the prediction, and all its views for the loss.
The step is SGD without momentum, as in the authors' code.

Views of many images are drawn at once, by a generator on the host; the model adapts to one image after the other.
"""

from typing import Any

import torch
from torch import nn

from tta_pipeline.methods.gradient_method import GradientMethod
from tta_pipeline.methods.losses import marginal_entropy
from tta_pipeline.methods.norm_layers import use_mixed_statistics
from tta_pipeline.methods.views.augmix import augmix_views
from tta_pipeline.methods.views.entries import MemoHyperparameters


class Memo(GradientMethod):
    """Minimises the entropy of the mean prediction over an image's views, and then predicts the image."""

    name = "memo"

    def __init__(self, model: nn.Module, hyperparameters: MemoHyperparameters, **kwargs: Any) -> None:
        use_mixed_statistics(model, alpha=1 / (hyperparameters.prior_strength + 1))
        super().__init__(model, hyperparameters, **kwargs)
        self._settings = hyperparameters
        self.generator = torch.Generator().manual_seed(self.seed)  # AugMix draws on the host.

    def _select(self, model: nn.Module) -> list[nn.Parameter]:
        return list(model.requires_grad_(True).parameters())

    def _predict(self, images: torch.Tensor) -> torch.Tensor:
        settings = self._settings
        num_views = self._steps * settings.num_augmentations
        views = augmix_views(images, self.generator, num_views=num_views, crop=settings.crop)
        pairs = zip(torch.split(images, 1), views, strict=True)
        return torch.cat([self._predict_one(image, of_it) for image, of_it in pairs])

    def _predict_one(self, image: torch.Tensor, views: torch.Tensor) -> torch.Tensor:
        """Return the logits (1, K) for *image* (1, 3, H, W) after all steps, each on its own share of *views*."""
        if self._episodic:
            self._start_over()
        with torch.enable_grad():
            for of_step in torch.split(views, self._settings.num_augmentations):
                loss = marginal_entropy(self._forward(of_step))
                self._step(loss, num_samples=len(of_step), num_adapted=1)
        with torch.no_grad():
            return self._forward(image)
