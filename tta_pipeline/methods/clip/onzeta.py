"""OnZeta: each image gets a label from the texts, balanced over classes, and proxies of the classes learn from it.

Qian and Hu 2024, "Online zero-shot classification with CLIP", as in its authors' program. The label of an image is
its zero-shot prediction, in which classes that were predicted too often weigh less, by dual variables that follow the
stream (online label learning). Proxies in the space of images start as the text features and descend the cross entropy
to these labels (online proxy learning). The prediction is a mixture of label and proxies, and trusts the proxies more
as the stream goes on. Images are processed in order, each predicted before it is learned, so the batch size does not
change predictions.

The authors' program uses the length of its stream; here the share of the proxies stops growing after `stream_size`
images.
"""

import math
from typing import Any

import torch
from torch import nn
from torch.nn.functional import normalize

from tta_pipeline.methods.clip.entries import OnZetaHyperparameters
from tta_pipeline.methods.clip.image_method import ImageMethod


class OnZeta(ImageMethod):
    """Predicts by balanced labels and learned proxies; logits are logarithms of probabilities."""

    name = "onzeta"
    state_attrs = ("_proxies", "_duals", "_num_seen")

    def __init__(self, model: nn.Module, hyperparameters: OnZetaHyperparameters, **kwargs: Any) -> None:
        super().__init__(model, hyperparameters, **kwargs)
        self._settings = hyperparameters
        self._proxies = self._towers.text_features.clone()
        self._duals = torch.zeros(len(self._proxies), device=self.device)
        self._num_seen = 0

    def _predict_features(self, features: torch.Tensor) -> torch.Tensor:
        from_texts = (self._towers.scale * features @ self._towers.text_features.T).softmax(1)
        pairs = zip(features, from_texts, strict=True)
        return torch.stack([self._predict_one(feature, label) for feature, label in pairs])

    def _predict_one(self, feature: torch.Tensor, zero_shot: torch.Tensor) -> torch.Tensor:
        """Return the logits (K,) for the image with *feature* (D,) and *zero_shot* probabilities, and learn from it."""
        settings = self._settings
        self._num_seen += 1
        slowness = math.sqrt(self._num_seen)
        label = zero_shot * self._duals.exp()
        label = label / label.sum()
        excess = label - settings.smallest_share / len(label)
        self._duals.sub_(settings.dual_lr / slowness * excess).clamp_(min=0)

        prediction = (self._proxies @ feature / settings.temperature).softmax(0)
        trust = settings.proxy_share * math.sqrt(min(1.0, self._num_seen / settings.stream_size))
        mixture = trust * prediction + (1 - trust) * label
        step = settings.proxy_lr / slowness / settings.temperature
        self._proxies.sub_(step * torch.outer(prediction - label, feature))
        self._proxies.copy_(normalize(self._proxies, dim=1))
        return mixture.clamp(min=torch.finfo(mixture.dtype).tiny).log()
