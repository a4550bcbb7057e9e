"""Norm layers of a model, and replacements for batch norm's running statistics."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn.functional import batch_norm
from torch.nn.modules.batchnorm import _BatchNorm

from tta_pipeline.errors import AdaptationError

NORM_LAYERS = (_BatchNorm, nn.LayerNorm, nn.GroupNorm)


def require_batch_norm(model: nn.Module, method: str) -> None:
    """Raise an error if *model* has no batch norm.

    Raises:
        AdaptationError: *model* has no batch norm, so *method* would change nothing.
    """
    if not any(isinstance(layer, _BatchNorm) for layer in model.modules()):
        raise AdaptationError(
            f"{type(model).__name__} has no batch norm layer; {method} expects one: use another model"
        )


def use_batch_statistics(model: nn.Module) -> None:
    """Make every batch norm layer normalise with its current batch only, in training and evaluation mode."""
    for layer in model.modules():
        if isinstance(layer, _BatchNorm):
            layer.track_running_stats = False
            layer.running_mean = layer.running_var = layer.num_batches_tracked = None


def use_mixed_statistics(model: nn.Module, *, alpha: float) -> None:
    """Make every batch norm layer of *model* a `MixedBatchNorm`."""
    replace_batch_norm(model, lambda layer: MixedBatchNorm(layer, alpha=alpha))


def replace_batch_norm(model: nn.Module, replacement: Callable[[_BatchNorm], nn.Module]) -> None:
    """Replace every batch norm layer of *model* by the result of *replacement*."""
    for parent in list(model.modules()):
        for name, layer in parent.named_children():
            if isinstance(layer, _BatchNorm):
                setattr(parent, name, replacement(layer))


class CustomBatchNorm(_BatchNorm):
    """A batch norm layer for any number of dimensions, with weight, bias and running statistics from *layer*.

    The output passes through the child layers of *layer*, as in timm's `BatchNormAct2d`, which ends with an activation.

    Raises:
        AdaptationError: *layer* has no running statistics.
    """

    def __init__(self, layer: _BatchNorm) -> None:
        if layer.running_mean is None or layer.running_var is None:
            raise AdaptationError(
                f"{type(layer).__name__} has no running statistics; expected the statistics of the source data: use "
                "another model, or a method that does not need them, such as norm"
            )
        nn.Module.__init__(self)  # allocates no parameters
        self.__dict__.update(layer.__dict__)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return *inputs* (B, C, ...), normalised and passed through the child layers."""
        outputs = self._normalize(inputs)
        for layer in self.children():
            outputs = layer(outputs)
        return outputs

    def _normalize(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return *inputs* (B, C, ...) normalised."""
        raise NotImplementedError

    def _check_input_dim(self, _: Any) -> None:
        """Accept any number of dimensions."""


class MixedBatchNorm(CustomBatchNorm):
    """Normalises with a mixture of source and batch statistics; gradients do not flow through them.

    Mean and variance are (1 - alpha) * source + alpha * batch: Schneider et al. 2020, "Improving robustness against
    common corruptions by covariate shift adaptation", with n / (N + n) = alpha for batches of n and a prior strength N.
    The variance of the batch is the unbiased one, as in running statistics.
    """

    def __init__(self, layer: _BatchNorm, *, alpha: float) -> None:
        super().__init__(layer)
        self._alpha = alpha

    def _normalize(self, inputs: torch.Tensor) -> torch.Tensor:
        assert self.running_mean is not None
        assert self.running_var is not None
        mean, var = self.running_mean.clone(), self.running_var.clone()
        with torch.no_grad():
            # Mixes like running statistics; the result is unused, but the reduction is many times faster than var_mean.
            batch_norm(inputs, mean, var, training=True, momentum=self._alpha)
        return batch_norm(inputs, mean, var, self.weight, self.bias, training=False, eps=self.eps)
