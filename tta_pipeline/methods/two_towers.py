"""The two towers of a CLIP: features of images, and those of the classes' texts.

A zero-shot classifier is the image tower `tower`, a linear layer `head` without bias whose rows are the text features
times `scale`, and `scale` itself. Its features are directions: image and text features have length 1. A classifier
whose prompts can be tuned has `prompts`: a module with the buffer `context`, the embeddings (N, W) of the words before
each class's name, that maps such a context to text features (K, D).
"""

from copy import deepcopy
from typing import Any

import torch
from torch import nn

from tta_pipeline.errors import AdaptationError
from tta_pipeline.methods.features import Features


class TwoTowers:
    """What a zero-shot classifier within *model* makes of images and of classes.

    Raises:
        AdaptationError: *model* is no CLIP, or has not *num_classes* classes.
    """

    def __init__(self, model: nn.Module, method: str, *, num_classes: int) -> None:
        self._method = method
        self._classifier = _found(model, method)
        self._features = Features(self._classifier.head)
        if (found := len(self._classifier.head.weight)) != num_classes:
            raise AdaptationError(
                f"the CLIP has text features of {found} classes; {method} expects {num_classes}, as it was told: load "
                "the model with a name for each class"
            )

    @property
    def scale(self) -> float:
        """What the cosine of image and text is multiplied with."""
        return float(self._classifier.scale)

    @property
    def text_features(self) -> torch.Tensor:
        """One row of length 1 for each class, float32 (K, D)."""
        weight: torch.Tensor = self._classifier.head.weight
        return weight.detach().float() / self.scale

    def prompts(self, device: torch.device) -> nn.Module:
        """Return a copy of the prompts on *device*, its parameters frozen.

        Raises:
            AdaptationError: there are none.
        """
        if self._classifier.prompts is None:
            raise AdaptationError(
                f"the CLIP has no prompts with a context; {self._method} expects one whose text tower and tokenizer "
                "are open_clip's own: use an architecture such as ViT-B-16, or another method"
            )
        prompts: nn.Module = deepcopy(self._classifier.prompts).to(device)
        return prompts.requires_grad_(False)

    def take_image_features(self) -> torch.Tensor:
        """Return the features of the latest forward pass, float32 (B, D), rows of length 1, and release them."""
        return self._features.take().float()


def _found(model: nn.Module, method: str) -> Any:
    for layer in model.modules():
        if all(hasattr(layer, name) for name in ("tower", "head", "scale", "prompts")):
            return layer
    raise AdaptationError(
        f"{type(model).__name__} has no image tower with text features; {method} needs a CLIP model: use one of kind "
        "open_clip, or another method"
    )
