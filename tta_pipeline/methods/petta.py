"""PeTTA: RoTTA that senses how far its teacher has gone from the source, and adapts less and holds back more there.

Hoang et al. 2024, "Persistent test-time adaptation in recurring testing scenarios", section 4 and algorithm 1:

- Memory, robust batch norm, teacher and the time of a step are RoTTA's; its weights by timeliness are not used.
- Sensing: the mean features of each class, as the teacher predicts it, move by 0.05 with those of a batch, starting
  from the source's. The divergence of a class is 1 - exp(-d), d being the squared distance of its mean from the
  source's in units of the source's variances. That of the classes which a batch has, before it is entered, is averaged.
- Adapting: of a divergence g, the regulariser has the weight lambda_0 g, and the teacher follows with alpha_0 (1 - g).
- Loss: the cross entropy of the student for random views of the memory with the teacher's predictions (symmetric, and
  also for the images, in the preset `cifar`); minus the cosine of each parameter tensor with the source's, averaged;
  and the anchor loss, the cross entropy for the views with the source model's predictions for the images.

Constants are the authors'. d is the mean over features and not their sum, as in the authors' code: with the sum the
divergence of hundreds of features is 1 from the first batch on.
"""

from typing import Any

import torch
from torch import nn
from torch.nn.functional import cosine_similarity

from tta_pipeline.methods.catalogue import PettaHyperparameters
from tta_pipeline.methods.ema import follow, frozen_copy
from tta_pipeline.methods.features import Features, class_moments, classifier
from tta_pipeline.methods.losses import soft_cross_entropy, symmetric_cross_entropy
from tta_pipeline.methods.rotta import Rotta, follow_statistics

_MEAN_MOMENTUM = 0.05
_LEAST_VARIANCE = 1e-6


class Petta(Rotta):
    """Adapts as RoTTA, the less and the closer to the source, the more the teacher's features diverge from it."""

    name = "petta"
    keeps = ("_source_model", "_means", "_divergence")

    def __init__(self, model: nn.Module, hyperparameters: PettaHyperparameters, **kwargs: Any) -> None:
        super().__init__(model, hyperparameters, **kwargs)
        self._persistence = hyperparameters
        source = self._require_source_data("the means and variances of each class's features")
        layer = classifier(self._teacher, num_classes=self.num_classes, method=self.name)
        self._features = Features(layer)
        self._source_means, variances = class_moments(self._teacher, layer, self._features, source, method=self.name)
        self._scales = variances + _LEAST_VARIANCE
        self._means = self._source_means.clone()
        self._divergence = torch.zeros((), device=self.device)
        self._source_model = frozen_copy(self.model)  # its batch norm follows the memory, its parameters stay
        self._adapted = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        self._start_values = [parameter.detach().clone() for parameter in self._adapted]

    def _taught(self, images: torch.Tensor) -> torch.Tensor:
        logits = super()._taught(images)
        self._sense(self._features.take().float(), logits.argmax(1))
        return logits

    def _sense(self, features: torch.Tensor, labels: torch.Tensor) -> None:
        """Set the divergence from the classes of a batch, and enter its *features* (B, D) into their means."""
        counts = torch.zeros_like(self._means[:, 0]).index_add_(0, labels, torch.ones_like(features[:, 0]))
        is_seen = counts > 0
        distances = ((self._means - self._source_means) ** 2 / self._scales).mean(1)
        divergence = ((1 - (-distances).exp()) * is_seen).sum() / is_seen.sum()
        self._divergence.copy_(divergence.nan_to_num(1.0))  # features that are no numbers are as far as can be
        totals = torch.zeros_like(self._means).index_add_(0, labels, features)
        of_batch = totals / counts.clamp(min=1).unsqueeze(1)
        self._means.lerp_(of_batch, (_MEAN_MOMENTUM * is_seen).unsqueeze(1))

    def _compiled(self) -> list[tuple[object, str]]:
        return [(self, "_persistent_loss")]

    def _learn(self) -> None:
        images = self._bank.images()
        models = (self._teacher, self.model, self._source_model)
        follow_statistics(*models, follows=True)
        with torch.no_grad():
            target = self._forward(images, self._teacher)
            anchor = self._forward(images, self._source_model)
        # The student's statistics follow first the images and then the view, as in the authors' code.
        seen = [self._forward(images)] if self._persistence.symmetric else []
        seen.append(self._forward(self._view(images)))
        follow_statistics(*models, follows=False)
        loss = self._persistent_loss(seen, target, anchor)
        self._step(loss, num_samples=len(seen) * len(images), num_adapted=len(images))
        divergence = float(self._divergence)  # The host waits: an average over many tensors takes a number of its own.
        follow(self._teacher, self.model, momentum=1 - self._persistence.nu * (1 - divergence))

    def _persistent_loss(self, seen: list[torch.Tensor], target: torch.Tensor, anchor: torch.Tensor) -> torch.Tensor:
        """Return the loss of the student's logits, of the images if they enter and then of the views, each (M, K)."""
        cross_entropy = symmetric_cross_entropy if self._persistence.symmetric else soft_cross_entropy
        taught = torch.stack([cross_entropy(logits, target) for logits in seen]).mean()
        cosines = [
            cosine_similarity(now.flatten(), start.flatten(), dim=0)
            for now, start in zip(self._adapted, self._start_values, strict=True)
        ]
        held = -self._divergence * torch.stack(cosines).mean()
        anchored = soft_cross_entropy(seen[-1], anchor).mean()
        return taught + self._persistence.lambda_0 * held + self._persistence.anchor_weight * anchored
