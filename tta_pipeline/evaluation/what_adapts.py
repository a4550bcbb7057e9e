"""Which parts of its network a method adapts and freezes, for records."""

from tta_pipeline.methods.entry import GradientHyperparameters
from tta_pipeline.methods.method import Method
from tta_pipeline.methods.norm_layers import NORM_LAYERS
from tta_pipeline.methods.top_layers import bare_name


def count_adapted_parameters(method: Method) -> int | None:
    """Return the number of parameters of the network that gradient steps change; None if *method* takes none."""
    if not isinstance(method.hyperparameters, GradientHyperparameters):
        return None
    return sum(parameter.numel() for parameter in method.model.parameters() if parameter.requires_grad)


def describe_frozen_layers(method: Method) -> str | None:
    """Return the number and names of the top norm layers that *method* freezes; None if it never freezes any.

    For example `7 of 25, blocks.9.norm1 to norm`, or `none of 19` if the network has no top.
    """
    frozen = method.frozen_layers
    if frozen is None:
        return None
    num_layers = sum(isinstance(layer, NORM_LAYERS) for layer in method.model.modules())
    if not frozen:
        return f"none of {num_layers}"
    return f"{len(frozen)} of {num_layers}, {bare_name(frozen[0])} to {bare_name(frozen[-1])}"
