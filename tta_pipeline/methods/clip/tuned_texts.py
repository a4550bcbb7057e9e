"""Methods that tune CLIP's text features to each image, so that views of the image agree.

The first step chooses the views of lowest entropy. The loss is the entropy of their mean probabilities. AdamW updates
the tuned parameters, which are reset before each image; the image is predicted with the tuned text features. Nothing
else changes, and image features are computed once. Images are tuned one after the other.
"""

from abc import abstractmethod
from typing import Any

import torch
from torch import nn

from tta_pipeline.methods.clip.crop_method import CropMethod, count_kept
from tta_pipeline.methods.clip.entries import TunedTextsHyperparameters
from tta_pipeline.methods.losses import entropy, marginal_entropy


class TunedTexts(CropMethod):
    """Tunes the parameters from `_untuned` to each image separately, and then predicts the image."""

    def __init__(self, model: nn.Module, hyperparameters: TunedTextsHyperparameters, **kwargs: Any) -> None:
        super().__init__(model, hyperparameters, **kwargs)
        self._settings = hyperparameters
        self._num_kept = count_kept(hyperparameters.num_views, hyperparameters.kept_share)

    @abstractmethod
    def _untuned(self) -> torch.Tensor:
        """Return a new tensor with the initial values of the tuned parameters."""

    @abstractmethod
    def _text_features(self, tuned: torch.Tensor) -> torch.Tensor:
        """Return the text features, (K, D), rows of length 1, as a function of what is *tuned*."""

    def _loss(self, logits: torch.Tensor, text_features: torch.Tensor) -> torch.Tensor:  # noqa: ARG002
        """Return the loss, a scalar, of the *logits* (V, K) of the kept views and of the *text_features* (K, D)."""
        return marginal_entropy(logits)

    def _predict_views(self, logits: torch.Tensor, features: torch.Tensor) -> torch.Tensor:  # noqa: ARG002
        tuned = [self._tune(of_image) for of_image in features]
        pairs = zip(features[:, 0], tuned, strict=True)
        return torch.stack([self._logits(image, self._text_features(each)) for image, each in pairs])

    def _tune(self, features: torch.Tensor) -> nn.Parameter:
        """Return the tuned parameters after all steps on views with *features* (V, D)."""
        settings = self._settings
        tuned = nn.Parameter(self._untuned())
        optimizer = torch.optim.AdamW([tuned], lr=settings.lr, weight_decay=settings.weight_decay)
        with torch.enable_grad():
            for step in range(settings.steps):
                text_features = self._text_features(tuned)
                logits = self._logits(features, text_features)
                if step == 0:
                    surest = entropy(logits.detach()).argsort(stable=True)[: self._num_kept]
                self._loss(logits[surest], text_features).backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                optimizer.zero_grad()
                self.num_backwards += self._num_kept
                self.num_adapted_samples += 1
                self.num_updates += 1
        return tuned

    def _logits(self, features: torch.Tensor, text_features: torch.Tensor) -> torch.Tensor:
        """Return the logits (..., K) of *features* (..., D)."""
        return self._towers.scale * features @ text_features.float().T
