"""AdaContrast: pseudo labels refined by neighbours, a contrastive loss between views, and a diversity loss.

Chen et al. 2022, "Contrastive test-time adaptation", section 3:

- Pseudo labels: at first the prediction for the weak view. After 1024 samples, the class of highest mean probability
  among the 10 nearest neighbours by cosine, in a bank of the latest 16384 features and probabilities (equations 1
  and 2).
- Loss (equation 8), a sum of three terms: the cross entropy of a strong view with the pseudo label; InfoNCE (equations
  4 and 5, temperature 0.07) between that view's features and the key model's features of another strong view, against a
  queue of 16384 keys without the keys of the same pseudo label; and the negative entropy of the mean prediction
  (equation 7).
- The key model follows with momentum 0.999. After the update, it also fills the bank from the weak view.

All parameters adapt. Batch norm is in training mode for views, so that running statistics move, and in evaluation mode
for the prediction, which is made after the update. Constants are from the authors' code; as there, the queue starts
with random directions and labels. Bank and queue hold only the stream. The authors put a batch's pseudo labels into the
queue before they compute its loss, and so exclude keys by the labels of other keys; here the loss comes first.
"""

from copy import deepcopy
from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy, normalize
from torch.nn.modules.batchnorm import _BatchNorm

from tta_pipeline.methods.ema import update_teacher
from tta_pipeline.methods.features import Features, find_classifier
from tta_pipeline.methods.gradient_method import GradientMethod
from tta_pipeline.methods.teachers.entries import AdaContrastHyperparameters
from tta_pipeline.methods.teachers.memory_bank import Queue
from tta_pipeline.methods.teachers.teacher_views import moco_view, weak_view


class AdaContrast(GradientMethod):
    """Trains all parameters by pseudo labels and contrast between views, and predicts after each update."""

    name = "adacontrast"
    state_attrs = ("_key_model", "_bank", "_keys", "_num_seen")

    def __init__(self, model: nn.Module, hyperparameters: AdaContrastHyperparameters, **kwargs: Any) -> None:
        super().__init__(model, hyperparameters, **kwargs)
        self._settings = hyperparameters
        self._key_model = deepcopy(self.model)
        layer = find_classifier(self.model, num_classes=self.num_classes, method=self.name)
        self._features = Features(layer)
        self._key_features = Features(find_classifier(self._key_model, num_classes=self.num_classes, method=self.name))
        self._norms = [
            layer for net in (self.model, self._key_model) for layer in net.modules() if isinstance(layer, _BatchNorm)
        ]
        self._num_features = layer.in_features
        self._bank = Queue(hyperparameters.queue_size, device=self.device)
        self._keys = Queue(hyperparameters.queue_size, device=self.device)
        self._keys.append(*self._first_keys())
        self._num_seen = 0

    def _select(self, model: nn.Module) -> list[nn.Parameter]:
        return list(model.requires_grad_(True).parameters())

    def _first_keys(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return random directions (Q, D) and labels, int64 (Q,), to fill the queue of keys."""
        size, device = self._settings.queue_size, self.device
        generator = torch.Generator(device).manual_seed(self.seed)
        directions = torch.randn(size, self._num_features, generator=generator, device=device)
        labels = torch.randint(self.num_classes, (size,), generator=generator, device=device)
        return normalize(directions, dim=1), labels

    def _adapt(self, images: torch.Tensor) -> torch.Tensor:
        for layer in self._norms:
            layer.training = True  # not its submodules, which may be dropout
        self._learn(images)
        for layer in self._norms:
            layer.training = False
        with torch.no_grad():
            return self._forward(images)

    def _learn(self, images: torch.Tensor) -> None:
        """Take one step on views of *images*, and store their keys and features."""
        weak = weak_view(images, self.generator)
        labels = self._pseudo_labels(weak)
        logits = self._forward(moco_view(images, self.generator)).float()
        queries = normalize(self._features.take().float(), dim=1)
        update_teacher(self._key_model, self.model, momentum=self._settings.teacher_momentum)
        keys, _ = self._key_forward(moco_view(images, self.generator))
        loss = cross_entropy(logits, labels) + self._instance_loss(queries, keys, labels) + _negative_diversity(logits)
        self._step(loss, num_samples=len(images))
        self._keys.append(keys, labels)
        features, weak_logits = self._key_forward(weak)
        self._bank.append(features, weak_logits.softmax(1))

    @torch.no_grad()
    def _pseudo_labels(self, weak: torch.Tensor) -> torch.Tensor:
        """Return pseudo labels, int64 (B,), for the views *weak*."""
        votes = self._forward(weak)
        features = normalize(self._features.take().float(), dim=1)
        if self._num_seen >= self._settings.min_seen:
            known, probabilities = self._bank.rows()
            nearest = (features @ known.T).topk(min(self._settings.num_neighbors, len(known))).indices
            votes = probabilities[nearest].mean(1)
        else:
            self._num_seen += len(weak)
        return votes.argmax(1)

    @torch.no_grad()
    def _key_forward(self, images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the key model's unit-length features (B, D) and logits (B, K)."""
        logits = self._forward(images, self._key_model).float()
        return normalize(self._key_features.take().float(), dim=1), logits

    def _instance_loss(self, queries: torch.Tensor, keys: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Return the mean InfoNCE loss of *queries* and *keys*, both (B, D), against stored keys of other classes."""
        others, their_labels = self._keys.rows()
        positive = (queries * keys).sum(1, keepdim=True)
        negative = (queries @ others.T).masked_fill(labels.unsqueeze(1) == their_labels, float("-inf"))
        logits = torch.cat([positive, negative], 1) / self._settings.temperature
        return cross_entropy(logits, torch.zeros_like(labels))


def _negative_diversity(logits: torch.Tensor) -> torch.Tensor:
    """Return sum_k q_k log q_k, a scalar, with q the mean probabilities of *logits* (B, K)."""
    mean = logits.softmax(1).mean(0)
    return (mean * (mean + 1e-8).log()).sum()
