"""PeTTA: RoTTA that measures how far its teacher has diverged from the source, and adapts less if it has.

Hoang et al. 2024, "Persistent test-time adaptation in recurring testing scenarios", section 4 and algorithm 1:

- Memory, robust batch norm, teacher and the time of a step are RoTTA's; RoTTA's weights by timeliness are not used.
- Sensing: each class, as predicted by the teacher, has mean features, which start from the source's and move by 0.05
  towards each batch's. The divergence of a class is 1 - exp(-d), where d is the squared distance of its mean
  from the source's mean, in units of the source's variances. The divergence g of a batch is the average over the
  classes in the batch, computed before the batch enters the means.
- Adapting: the regulariser has the weight lambda_0 g, and the teacher follows the student with alpha_0 (1 - g).
- Loss: the cross entropy between the student's predictions for random views of the memory and the teacher's (symmetric,
  and also for the images, in the preset `cifar`); the regulariser, minus the mean cosine between each parameter tensor
  and the source's; and the anchor loss, the cross entropy between the predictions for the views and the source model's
  predictions for the images.

Constants are the authors'. d is a mean over features, not a sum, as in the authors' code: with a sum over hundreds of
features, the divergence would be 1 from the first batch on.
"""

from typing import Any

import torch
from torch import nn

from tta_pipeline.methods.ema import frozen_copy, update_teacher
from tta_pipeline.methods.features import Features, class_moments, find_classifier
from tta_pipeline.methods.losses import soft_cross_entropy, symmetric_cross_entropy
from tta_pipeline.methods.teachers.entries import PettaHyperparameters
from tta_pipeline.methods.teachers.rotta import Rotta, set_statistics_updates

_MEAN_MOMENTUM = 0.05
_LEAST_VARIANCE = 1e-6
_LEAST_SQUARE = 1e-16
"""Least product of squared lengths in a cosine, so that parameters that are all zero have gradients."""


class Petta(Rotta):
    """RoTTA that adapts less, and stays closer to the source, the more the teacher's features diverge."""

    name = "petta"
    state_attrs = ("_source_model", "_means", "_divergence")

    def __init__(self, model: nn.Module, hyperparameters: PettaHyperparameters, **kwargs: Any) -> None:
        super().__init__(model, hyperparameters, **kwargs)
        self._persistence = hyperparameters
        source = self._require_source_data("the means and variances of each class's features")
        layer = find_classifier(self._teacher, num_classes=self.num_classes, method=self.name)
        self._features = Features(layer)
        self._source_means, variances = class_moments(self._teacher, layer, self._features, source, method=self.name)
        self._scales = variances + _LEAST_VARIANCE
        self._means = self._source_means.clone()
        self._divergence = torch.zeros((), device=self.device)
        self._source_model = frozen_copy(self.model)  # its batch norm follows the memory, its parameters stay
        self._adapted = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        self._sizes = torch.tensor([parameter.numel() for parameter in self._adapted], device=self.device)
        self._start_values = self._adapted_values().detach()
        self._start_squares = self._sum_each(self._start_values**2)

    def _predict_with_teacher(self, images: torch.Tensor) -> torch.Tensor:
        logits = super()._predict_with_teacher(images)
        self._update_divergence(self._features.take().float(), logits.argmax(1))
        return logits

    def _update_divergence(self, features: torch.Tensor, labels: torch.Tensor) -> None:
        """Set the divergence of a batch from its *labels* (B,), and add its *features* (B, D) to the class means."""
        counts = torch.zeros_like(self._means[:, 0]).index_add_(0, labels, torch.ones_like(features[:, 0]))
        is_seen = counts > 0
        distances = ((self._means - self._source_means) ** 2 / self._scales).mean(1)
        divergence = ((1 - (-distances).exp()) * is_seen).sum() / is_seen.sum()
        self._divergence.copy_(divergence.nan_to_num(1.0))  # non-finite features count as the largest divergence
        totals = torch.zeros_like(self._means).index_add_(0, labels, features)
        of_batch = totals / counts.clamp(min=1).unsqueeze(1)
        self._means.lerp_(of_batch, (_MEAN_MOMENTUM * is_seen).unsqueeze(1))

    def _learn(self) -> None:
        images = self._bank.images()
        models = (self._teacher, self.model, self._source_model)
        set_statistics_updates(*models, follows=True)
        with torch.no_grad():
            target = self._forward(images, self._teacher)
            anchor = self._forward(images, self._source_model)
        # The student's statistics follow first the images and then the view, as in the authors' code.
        seen = [self._forward(images)] if self._persistence.symmetric else []
        seen.append(self._forward(self._view(images)))
        set_statistics_updates(*models, follows=False)
        loss = self._persistent_loss(seen, target, anchor)
        self._step(loss, num_samples=len(seen) * len(images), num_adapted=len(images))
        divergence = float(self._divergence)  # The host waits: the average over many tensors takes a Python number.
        update_teacher(self._teacher, self.model, momentum=1 - self._persistence.nu * (1 - divergence))

    def _persistent_loss(self, seen: list[torch.Tensor], target: torch.Tensor, anchor: torch.Tensor) -> torch.Tensor:
        """Return the loss; *seen* are the student's logits for the images, if used, and then for the views, (M, K)."""
        cross_entropy = symmetric_cross_entropy if self._persistence.symmetric else soft_cross_entropy
        taught = torch.stack([cross_entropy(logits, target) for logits in seen]).mean()
        held = -self._divergence * self._cosines().mean()
        anchored = soft_cross_entropy(seen[-1], anchor).mean()
        return taught + self._persistence.lambda_0 * held + self._persistence.anchor_weight * anchored

    def _adapted_values(self) -> torch.Tensor:
        """Return the values of all adapted parameters one after another, (N,)."""
        return torch.cat([parameter.flatten() for parameter in self._adapted])

    def _cosines(self) -> torch.Tensor:
        """Return the cosine between each of the T adapted tensors and the source's, (T,), all in one submission."""
        now = self._adapted_values()
        dots, squares = self._sum_each(now * self._start_values), self._sum_each(now**2)
        return dots / (squares * self._start_squares).clamp(min=_LEAST_SQUARE).sqrt()

    def _sum_each(self, values: torch.Tensor) -> torch.Tensor:
        """Return the sum of the *values* (N,) of each adapted tensor, (T,)."""
        # The host would wait for a check that the sizes add up.
        return torch.segment_reduce(values, "sum", lengths=self._sizes, unsafe=True)
