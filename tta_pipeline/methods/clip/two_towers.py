"""CLIP's two towers: features of images, and features of the classes' texts.

A zero-shot classifier has the image tower `tower`, the number `scale`, and a linear layer `head` without bias, whose
rows are the text features times `scale`. Image and text features have length 1. A classifier whose prompts can be tuned
also has the module `prompts`. Its buffer `context` holds the embeddings (N, W) of the words before each class's name,
and the module maps a context to text features (K, D).
"""

from copy import deepcopy
from typing import Any

import torch
from torch import nn

from tta_pipeline.errors import AdaptationError
from tta_pipeline.methods.features import Features


class TwoTowers:
    """The image features, text features and prompts of the zero-shot classifier within *model*.

    Raises:
        AdaptationError: *model* is no CLIP model, or does not have *num_classes* classes.
    """

    def __init__(self, model: nn.Module, method: str, *, num_classes: int) -> None:
        self._method = method
        self._classifier = _find_zero_shot_classifier(model, method)
        self._features = Features(self._classifier.head)
        if (found := len(self._classifier.head.weight)) != num_classes:
            raise AdaptationError(
                f"The CLIP model has text features for {found} classes; {method} expects {num_classes}, its "
                "num_classes: load the model with one name per class"
            )

    @property
    def scale(self) -> float:
        """Factor on the cosine of image and text features."""
        return float(self._classifier.scale)

    @property
    def text_features(self) -> torch.Tensor:
        """Text features of the classes, float32 (K, D), rows of length 1."""
        weight: torch.Tensor = self._classifier.head.weight
        return weight.detach().float() / self.scale

    @property
    def tower(self) -> nn.Module:
        """The image tower, which maps images to features (B, D) of any length."""
        tower: nn.Module = self._classifier.tower
        return tower

    def prompts(self, device: torch.device) -> nn.Module:
        """Return a copy of the prompts on *device*, with frozen parameters.

        Raises:
            AdaptationError: the classifier has no prompts.
        """
        if self._classifier.prompts is None:
            raise AdaptationError(
                f"The CLIP model has no prompts with a context; {self._method} expects open_clip's own text tower and "
                "tokenizer: use an architecture such as ViT-B-16, or another method"
            )
        prompts: nn.Module = deepcopy(self._classifier.prompts).to(device)
        return prompts.requires_grad_(False)

    def take_image_features(self) -> torch.Tensor:
        """Return the features of the latest forward pass, float32 (B, D), rows of length 1, and release them."""
        return self._features.take().float()


def _find_zero_shot_classifier(model: nn.Module, method: str) -> Any:
    for layer in model.modules():
        if all(hasattr(layer, name) for name in ("tower", "head", "scale", "prompts")):
            return layer
    raise AdaptationError(
        f"{type(model).__name__} has no image tower with text features; {method} needs a CLIP model: use one of kind "
        "open_clip, or another method"
    )
