"""The norm layers of a model: their affine parameters, and batch statistics in place of running ones."""

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from tta_pipeline.errors import AdaptationError

NORM_LAYERS = (_BatchNorm, nn.LayerNorm, nn.GroupNorm)


def require_batch_norm(model: nn.Module, method: str) -> None:
    """Refuse a model without batch norm.

    Raises:
        AdaptationError: *model* has none, so *method* would change nothing.
    """
    if not any(isinstance(layer, _BatchNorm) for layer in model.modules()):
        raise AdaptationError(
            f"{type(model).__name__} has no batch norm layer; {method} expects one: use another model"
        )


def use_batch_statistics(model: nn.Module) -> None:
    """Make every batch norm layer normalise with its current batch alone, in training and evaluation mode."""
    for layer in model.modules():
        if isinstance(layer, _BatchNorm):
            layer.track_running_stats = False
            layer.running_mean = layer.running_var = layer.num_batches_tracked = None


def affine_parameters(model: nn.Module, method: str) -> list[nn.Parameter]:
    """Freeze *model* but for weight and bias of its norm layers, and return those.

    Raises:
        AdaptationError: there are none.
    """
    model.requires_grad_(False)
    layers = [layer for layer in model.modules() if isinstance(layer, NORM_LAYERS)]
    parameters = [parameter for layer in layers for parameter in layer.parameters(recurse=False)]
    if not parameters:
        raise AdaptationError(
            f"{type(model).__name__} has no norm layer with weight and bias; {method} adapts nothing else: "
            "use a model with batch, layer or group norm"
        )
    for parameter in parameters:
        parameter.requires_grad_(True)
    return parameters
