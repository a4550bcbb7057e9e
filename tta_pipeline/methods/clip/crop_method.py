"""Methods that predict each image from a CLIP's features of its views: the image itself, and random crops of it.

Views of many images are drawn at once, by a generator on the host; the views of one image are one batch of the image
tower. What follows the features is computed in float32, under autocast too.
"""

from abc import abstractmethod
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from tta_pipeline.methods.clip.crop_views import crop_views
from tta_pipeline.methods.clip.entries import CropHyperparameters
from tta_pipeline.methods.clip.two_towers import TwoTowers
from tta_pipeline.methods.method import Method


class CropMethod(Method):
    """Predicts each image by `_predict_views`, from the features of its views."""

    def __init__(self, model: nn.Module, hyperparameters: CropHyperparameters, **kwargs: Any) -> None:
        super().__init__(model, hyperparameters, **kwargs)
        self._towers = TwoTowers(model, self.name, num_classes=self.num_classes)
        self._num_views = hyperparameters.num_views
        self.generator = torch.Generator().manual_seed(self.seed)  # views are drawn on the host

    @abstractmethod
    def _predict_views(self, logits: torch.Tensor, features: torch.Tensor) -> torch.Tensor:
        """Return the logits (B, K) of images from zero-shot *logits* (B, V, K) and *features* (B, V, D) of their views.

        The first view is the image itself. Features have length 1; gradients are disabled.
        """

    def _predict(self, images: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():  # no inference mode: a method may tune texts to the features
            seen = [self._see(views) for views in self._draw_views(images)]
            logits, features = (torch.stack(parts) for parts in zip(*seen, strict=True))
            return self._predict_views(logits, features)

    def _draw_views(self, images: torch.Tensor) -> Iterator[torch.Tensor]:
        """Yield the views (V, 3, H, W) of each image; those of a whole batch would take gigabytes."""
        crops = crop_views(images, self.generator, num_views=self._num_views - 1)
        for image, of_it in zip(images, crops, strict=True):
            yield torch.cat([image[None], of_it])

    def _see(self, views: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return float32 logits (V, K) and features (V, D) of the *views* of one image."""
        logits = self._forward(views).float()
        return logits, self._towers.take_image_features()
