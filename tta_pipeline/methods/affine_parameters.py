"""Selection of the parameters to adapt: weight and bias of norm layers."""

from collections.abc import Collection

from torch import nn

from tta_pipeline.errors import AdaptationError
from tta_pipeline.methods.norm_layers import NORM_LAYERS


def select_affine_parameters(model: nn.Module, method: str, *, frozen: Collection[str] = ()) -> list[nn.Parameter]:
    """Freeze *model* except weight and bias of its norm layers that are not *frozen*, and return these parameters.

    Raises:
        AdaptationError: *model* has no such parameters.
    """
    model.requires_grad_(False)
    parameters = [
        parameter
        for name, layer in model.named_modules()
        if isinstance(layer, NORM_LAYERS) and name not in frozen
        for parameter in layer.parameters(recurse=False)
    ]
    if not parameters:
        raise AdaptationError(
            f"{type(model).__name__} has no norm layer with weight and "
            f"bias{f' but the {len(frozen)} frozen ones' if frozen else ''}; {method} adapts nothing else: use a "
            f"model with batch, layer or group norm{', or name fewer frozen_layers' if frozen else ''}"
        )
    for parameter in parameters:
        parameter.requires_grad_(True)
    return parameters
