"""RoTTA: a mean teacher and its student, which learns from a class-balanced memory of the stream.

Yuan et al. 2023, "Robust test-time adaptation in dynamic scenarios", section 3:

- Robust batch norm (equations 3 and 4): running statistics move by alpha = 0.05 towards the memory's; both
  models normalise with the running statistics, in training and for the prediction.
- Memory: 64 images, see `BalancedBank`; the teacher's predictions give classes and uncertainties.
- One step every 64 images of the stream: the loss is the cross entropy between the student's predictions for random
  views of the memory and the teacher's predictions for the memory, weighted by timeliness,
  exp(-age) / (1 + exp(-age)) (equations 8 and 9).
- The teacher follows the student with nu = 0.001 (equation 6), and predicts before the update.

Constants are the authors'. The affine parameters of the norm layers adapt. A model without batch norm uses everything
else, as in the benchmark of Doebler et al.
"""

from copy import deepcopy
from typing import Any

import torch
from torch import nn
from torch.nn.functional import batch_norm
from torch.nn.modules.batchnorm import _BatchNorm

from tta_pipeline.methods.affine_parameters import select_affine_parameters
from tta_pipeline.methods.augmentations import copy_to_device
from tta_pipeline.methods.ema import update_teacher
from tta_pipeline.methods.losses import entropy, soft_cross_entropy
from tta_pipeline.methods.norm_layers import CustomBatchNorm, replace_batch_norm
from tta_pipeline.methods.teachers.entries import RottaHyperparameters
from tta_pipeline.methods.teachers.memory_bank import BalancedBank
from tta_pipeline.methods.teachers.view_method import ViewMethod


class Rotta(ViewMethod):
    """Trains the student towards the teacher on images in memory, and predicts with the teacher."""

    name = "rotta"
    state_attrs = ("_teacher", "_bank", "_num_seen")

    def __init__(self, model: nn.Module, hyperparameters: RottaHyperparameters, **kwargs: Any) -> None:
        replace_batch_norm(model, lambda layer: RobustBatchNorm(layer, alpha=hyperparameters.alpha))
        super().__init__(model, hyperparameters, **kwargs)
        self._settings = hyperparameters
        self._teacher = deepcopy(self.model)
        self._bank = BalancedBank(
            hyperparameters.memory_size,
            num_classes=self.num_classes,
            lambda_t=hyperparameters.lambda_t,
            lambda_u=hyperparameters.lambda_u,
            device=self.device,
        )
        self._num_seen = 0

    def _select(self, model: nn.Module) -> list[nn.Parameter]:
        return select_affine_parameters(model, self.name)

    def _adapt(self, images: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            logits = self._predict_with_teacher(images)
            # One row of labels, exact up to 2**24, and one of entropies, so that the host waits only once.
            labels, uncertainties = torch.stack([logits.argmax(1).float(), entropy(logits).float()]).tolist()
        for image, label, uncertainty in zip(images, labels, uncertainties, strict=True):
            self._bank.add(image, label=int(label), uncertainty=uncertainty)
            self._num_seen += 1
            if self._num_seen % self._settings.update_frequency == 0:
                self._learn()
        self._bank.store.write()
        return logits

    def _predict_with_teacher(self, images: torch.Tensor) -> torch.Tensor:
        """Return the teacher's logits (B, K) for a batch of the stream."""
        return self._forward(images, self._teacher)

    def _learn(self) -> None:
        """Take one step on the memory."""
        images = self._bank.images()
        (weights,) = copy_to_device([torch.sigmoid(-self._bank.ages())], images.device)
        set_statistics_updates(self._teacher, self.model, follows=True)
        with torch.no_grad():
            target = self._forward(images, self._teacher)
        logits = self._forward(self._view(images))
        set_statistics_updates(self._teacher, self.model, follows=False)
        self._step((weights * soft_cross_entropy(logits, target)).mean(), num_samples=len(images))
        update_teacher(self._teacher, self.model, momentum=1 - self._settings.nu)


class RobustBatchNorm(CustomBatchNorm):
    """Normalises with running statistics; in training mode the batch first updates them, with gradients."""

    def __init__(self, layer: _BatchNorm, *, alpha: float) -> None:
        super().__init__(layer)
        self._alpha = alpha

    def _normalize(self, inputs: torch.Tensor) -> torch.Tensor:
        assert self.running_mean is not None
        assert self.running_var is not None
        scaled = None
        if self.training:
            dims = [dim for dim in range(inputs.ndim) if dim != 1]
            batch_var, batch_mean = torch.var_mean(inputs.to(self.running_mean.dtype), dims, correction=0)
            if torch.is_grad_enabled():
                mean, var = (
                    self.running_mean.lerp(batch_mean, self._alpha),
                    self.running_var.lerp(batch_var, self._alpha),
                )
                scaled = self._scale(inputs, mean, var)
            self.running_mean.lerp_(batch_mean.detach(), self._alpha)
            self.running_var.lerp_(batch_var.detach(), self._alpha)
        if scaled is not None:
            return scaled
        return batch_norm(inputs, self.running_mean, self.running_var, self.weight, self.bias, eps=self.eps)

    def _scale(self, inputs: torch.Tensor, mean: torch.Tensor, var: torch.Tensor) -> torch.Tensor:
        """Return what `batch_norm` returns for *inputs*, with gradients for their *mean* and *var* (C,) too."""
        scale = (var + self.eps).rsqrt() if self.weight is None else (var + self.eps).rsqrt() * self.weight
        offset = -mean * scale if self.bias is None else self.bias - mean * scale
        shape = (1, -1, *[1] * (inputs.ndim - 2))
        return (inputs * scale.view(shape) + offset.view(shape)).to(inputs.dtype)


def set_statistics_updates(*models: nn.Module, follows: bool) -> None:
    """Set whether robust batch norm in *models* updates its running statistics with each batch."""
    for model in models:
        for layer in model.modules():
            if isinstance(layer, RobustBatchNorm):
                layer.training = follows  # not its submodules, which may be dropout
