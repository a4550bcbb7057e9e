"""Methods that predict each image from CLIP features of its views: the image itself, and random crops of it.

Views of many images are drawn at once, by a generator on the host; the views of one image are one batch of the image
tower. All computation after the features is in float32, under autocast too.
"""

import hashlib
from abc import abstractmethod
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from tta_pipeline.methods.clip.crop_views import crop_views, skip_views
from tta_pipeline.methods.clip.entries import CropHyperparameters
from tta_pipeline.methods.clip.two_towers import TwoTowers
from tta_pipeline.methods.features import ViewsRead
from tta_pipeline.methods.method import Method

_DIMENSIONS_OF_FEATURES = 3


class CropMethod(Method):
    """Predicts each image by `_predict_views`, from the features of its views."""

    reads_only_features = True

    def __init__(self, model: nn.Module, hyperparameters: CropHyperparameters, **kwargs: Any) -> None:
        super().__init__(model, hyperparameters, **kwargs)
        self._towers = TwoTowers(model, self.name, num_classes=self.num_classes)
        self._num_views = hyperparameters.num_views
        self.generator = torch.Generator().manual_seed(self.seed)  # views are drawn on the host

    @property
    def views_read(self) -> ViewsRead:
        """The next crops, which are the same for all methods of this class with the same seed and number of views."""
        return ViewsRead(
            num_views=self._num_views,
            draws_sha256=hashlib.sha256(self.generator.get_state().numpy().tobytes()).hexdigest(),
            code=f"{crop_views.__module__}:{crop_views.__name__}",
        )

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
        """Yield the views (V, 3, H, W) of one image at a time; a whole batch's views would take gigabytes.

        *images* may also be cached features (B, V, D) of all views, which are yielded unchanged.
        """
        if images.ndim == _DIMENSIONS_OF_FEATURES:
            skip_views(len(images), self.generator, num_views=self._num_views - 1)  # so that later crops are the same
            yield from images
            return
        crops = crop_views(images, self.generator, num_views=self._num_views - 1)
        for image, of_it in zip(images, crops, strict=True):
            yield torch.cat([image[None], of_it])

    def _see(self, views: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return float32 logits (V, K) and features (V, D) of the *views* of one image."""
        logits = self._forward(views).float()
        return logits, self._towers.take_image_features()


def count_kept(num_views: int, share: float) -> int:
    """Return how many of *num_views* views are the given *share* of them, at least one."""
    return max(1, int(num_views * share))
