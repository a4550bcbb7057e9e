"""BATCLIP: both CLIP towers adapt, so that predictions are confident, images near their text, and classes far apart.

Maharana et al. 2025, "BATCLIP: bimodal online test-time adaptation for CLIP", as in its authors' program. The
affine parameters of the norm layers of both towers take steps on the entropy of the predictions, minus the mean
projection of each predicted class's mean image feature on its text feature, minus the sum of one minus the cosine over
all ordered pairs of these means. Image features have their own length in the projection, and length 1 elsewhere.
The texts are always `a photo of a <class>.`, and the model's templates are not used.
"""

from typing import Any

import torch
from torch import nn
from torch.nn.functional import normalize, one_hot

from tta_pipeline.methods.clip.two_towers import TwoTowers
from tta_pipeline.methods.entry import GradientHyperparameters
from tta_pipeline.methods.gradient_method import GradientMethod
from tta_pipeline.methods.losses import entropy


class Batclip(GradientMethod):
    """Adapts the norm layers of both towers; predictions are from before the update."""

    name = "batclip"

    def __init__(
        self, model: nn.Module, hyperparameters: GradientHyperparameters, *, num_classes: int, **kwargs: Any
    ) -> None:
        self._both = _BothTowers(model, TwoTowers(model, self.name, num_classes=num_classes))
        super().__init__(self._both, hyperparameters, num_classes=num_classes, **kwargs)

    def _adapt(self, images: torch.Tensor) -> torch.Tensor:
        logits = self._forward(images)
        with torch.autocast(self.device.type, enabled=False):
            loss = self._bimodal_loss(logits, *self._both.take_features())
        self._step(loss, num_samples=len(images))
        return logits

    def _bimodal_loss(self, logits: torch.Tensor, features: torch.Tensor, texts: torch.Tensor) -> torch.Tensor:
        """Return the loss, a scalar, of *logits* (B, K), image *features* (B, D) and text features (K, D)."""
        labels = one_hot(logits.argmax(1), logits.shape[1]).to(features.dtype)
        counts = labels.sum(0).unsqueeze(1)
        is_predicted = counts > 0
        num_predicted = is_predicted.sum()
        means = labels.T @ features / counts.clamp(min=1)  # of a class without an image: zero
        projection = (means * texts).sum() / num_predicted
        directions = means / means.norm(dim=1, keepdim=True).where(is_predicted, 1.0)
        # The sum over pairs of N directions of length 1 is N (N - 1) minus the sum of their cosines.
        separation = num_predicted.square() - directions.sum(0).square().sum()
        loss: torch.Tensor = entropy(logits).mean() - projection - separation
        return loss


class _BothTowers(nn.Module):
    """A CLIP model that recomputes its text features in each pass, from the text tower's current parameters.

    Args:
        model: The classifier, with its normalisation.
        towers: Its towers.
    """

    def __init__(self, model: nn.Module, towers: TwoTowers) -> None:
        super().__init__()
        self.network = model
        self.prompts = towers.prompts(next(model.parameters()).device)
        self._scale = towers.scale
        self._image_features: torch.Tensor | None = None
        self._text_features: torch.Tensor | None = None
        # The hook is permanent, since compiled code ignores hooks added later.
        towers.tower.register_forward_hook(self._keep)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return logits (B, K) of *images*, float (B, 3, H, W) in [0, 1]."""
        self.network(images)
        assert self._image_features is not None
        texts: torch.Tensor = self.prompts(self.prompts.get_buffer("context"))
        self._text_features = texts.float()
        with torch.autocast(images.device.type, enabled=False):
            return self._scale * normalize(self._image_features, dim=1) @ self._text_features.T

    def take_features(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the features of the latest images, (B, D), and of the texts, (K, D), of length 1; release them."""
        images, texts = self._image_features, self._text_features
        assert images is not None, "no forward pass since the last call"
        assert texts is not None, "no forward pass since the last call"
        self._image_features = self._text_features = None
        return images, texts

    def _keep(self, _: nn.Module, __: object, features: torch.Tensor) -> None:
        self._image_features = features.float()
