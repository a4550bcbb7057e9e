"""TPT: tunes the words before the class names to each image, so that views of it agree.

Shu et al. 2022, "Test-time prompt tuning for zero-shot generalization in vision-language models", section 3.2. Views
are the image and random crops of it; those with the lowest entropy are kept. The loss is the entropy of their mean
probabilities (equation 3). AdamW takes one step on the context, which starts as "a photo of a" for each image, and the
image is predicted with the tuned context. Nothing but the context changes. Image features are computed once.

Views of many images are drawn at once, by a generator on the host; the context is tuned to one image after the other.
"""

from typing import Any

import torch
from torch import nn

from tta_pipeline.methods.clip.crop_views import crop_views
from tta_pipeline.methods.clip.entries import TptHyperparameters
from tta_pipeline.methods.clip.two_towers import TwoTowers
from tta_pipeline.methods.losses import entropy, marginal_entropy
from tta_pipeline.methods.method import Method


class Tpt(Method):
    """Tunes the context of a CLIP's prompts to each image separately, and then predicts the image."""

    name = "tpt"

    def __init__(self, model: nn.Module, hyperparameters: TptHyperparameters, **kwargs: Any) -> None:
        super().__init__(model, hyperparameters, **kwargs)
        self._settings = hyperparameters
        self._towers = TwoTowers(model, self.name, num_classes=self.num_classes)
        self._prompts = self._towers.prompts(self.device)
        self._num_kept = max(1, int(hyperparameters.num_views * hyperparameters.kept_share))
        self.generator = torch.Generator().manual_seed(self.seed)  # views are drawn on the host

    def _predict(self, images: torch.Tensor) -> torch.Tensor:
        views = crop_views(images, self.generator, num_views=self._settings.num_views - 1)
        pairs = zip(images, views, strict=True)
        return torch.stack([self._predict_one(torch.cat([image[None], of_it])) for image, of_it in pairs])

    def _predict_one(self, views: torch.Tensor) -> torch.Tensor:
        """Return the logits (K,) for the first of its *views* (V, 3, H, W)."""
        with torch.no_grad():
            self._forward(views)
            features = self._towers.take_image_features()
        context = self._tune_context(features)
        with torch.no_grad():
            return self._logits(features[:1], context)[0]

    def _tune_context(self, features: torch.Tensor) -> nn.Parameter:
        """Return the context after all steps on views with *features* (V, D); the first step chooses the kept views."""
        settings = self._settings
        context = nn.Parameter(self._prompts.get_buffer("context").clone())
        optimizer = torch.optim.AdamW([context], lr=settings.lr, weight_decay=settings.weight_decay)
        with torch.enable_grad():
            for step in range(settings.steps):
                logits = self._logits(features, context)
                if step == 0:
                    surest = entropy(logits.detach()).argsort(stable=True)[: self._num_kept]
                marginal_entropy(logits[surest]).backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                optimizer.zero_grad()
                self.num_backwards += self._num_kept
                self.num_adapted_samples += 1
                self.num_updates += 1
        return context

    def _logits(self, features: torch.Tensor, context: torch.Tensor) -> torch.Tensor:
        """Return the logits (V, K) of views with *features* (V, D), with *context* in the prompts."""
        text_features: torch.Tensor = self._prompts(context)
        return self._towers.scale * features @ text_features.float().T
