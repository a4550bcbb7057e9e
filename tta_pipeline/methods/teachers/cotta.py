"""CoTTA: a student learns from its moving average over many views, and is randomly restored to the source model.

Wang et al. 2022, "Continual test-time domain adaptation", section 3 and algorithm 1:

- Teacher: all its parameters follow the student's, theta' = 0.999 theta' + 0.001 theta (equation 2). The method
  predicts with the teacher, before the update.
- Views (equations 3 and 4): if the source model's mean confidence in the batch is below a threshold, the target is
  the mean of the teacher's logits over 32 random views; otherwise it is the teacher's logits for the images. Several
  views of the batch are drawn at once, on the device; each has its own forward pass.
- Loss: cross entropy between student and target (equation 1), symmetric on ImageNet-C, as in the authors' code.
- Restoration (equations 7 and 8): after each step, every weight is restored to the source model's with probability p.

Constants from the authors' code: threshold 0.92 and p 0.01 for CIFAR-10-C, 0.1 and 0.001 for ImageNet-C. Batch norm
uses batch statistics in all three models.
"""

from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import torch
from torch import nn

from tta_pipeline.methods.augmentations import copy_to_device
from tta_pipeline.methods.ema import frozen_copy, update_teacher
from tta_pipeline.methods.losses import soft_cross_entropy, symmetric_cross_entropy
from tta_pipeline.methods.norm_layers import use_batch_statistics
from tta_pipeline.methods.teachers.entries import CottaHyperparameters
from tta_pipeline.methods.teachers.teacher_views import cotta_views
from tta_pipeline.methods.teachers.view_method import ViewMethod


class Cotta(ViewMethod):
    """Trains all parameters of the student towards the teacher, and predicts with the teacher."""

    name = "cotta"
    state_attrs = ("_teacher",)

    def __init__(self, model: nn.Module, hyperparameters: CottaHyperparameters, **kwargs: Any) -> None:
        super().__init__(model, hyperparameters, **kwargs)
        self._settings = hyperparameters
        self._anchor = frozen_copy(self.model)
        self._teacher = deepcopy(self.model)

    def _select(self, model: nn.Module) -> list[nn.Parameter]:
        use_batch_statistics(model)
        return list(model.requires_grad_(True).parameters())

    def _adapt(self, images: torch.Tensor) -> torch.Tensor:
        student = self._forward(images)
        target = self._target(images)
        cross_entropy = symmetric_cross_entropy if self._settings.symmetric else soft_cross_entropy
        self._step(cross_entropy(student, target).mean(), num_samples=len(images))
        update_teacher(self._teacher, self.model, momentum=self._settings.teacher_momentum)
        self._restore_randomly()
        return target

    @torch.no_grad()
    def _target(self, images: torch.Tensor) -> torch.Tensor:
        """Return the teacher's logits, (B, K), for the images or their views."""
        confidence = self._forward(images, self._anchor).softmax(1).amax(1).mean()
        if (
            confidence >= self._settings.anchor_threshold
        ):  # The host waits for the device: dozens of passes depend on the result.
            return self._forward(images, self._teacher)
        num_views = self._settings.num_augmentations
        total = torch.zeros(len(images), self.num_classes, device=images.device)
        for views in self._draw_views(images, num_views):
            total += self._forward(views, self._teacher)
        return total / num_views

    def _draw_views(self, images: torch.Tensor, num_views: int) -> Iterator[torch.Tensor]:
        if self._draws == "image":
            return cotta_views(images, self.generator, num_views=num_views)
        return (self._view(images) for _ in range(num_views))

    @torch.no_grad()
    def _restore_randomly(self) -> None:
        parameters = list(self.model.parameters())
        drawn_on = self.generator.device
        chances = [torch.rand(each.shape, device=drawn_on, generator=self.generator) for each in parameters]
        if drawn_on != self.device:
            chances = copy_to_device(chances, self.device)
        packed = torch.cat([each.flatten() for each in chances]) < self._settings.restore_probability
        parts = torch.split(packed.to(parameters[0].dtype), [each.numel() for each in parameters])
        restored = [part.view(each.shape).to(each.dtype) for part, each in zip(parts, parameters, strict=True)]
        # All tensors at once; with a weight of 0 or 1, the result is exactly one of two finite values.
        torch._foreach_lerp_(parameters, list(self._anchor.parameters()), restored)  # type: ignore[arg-type]
