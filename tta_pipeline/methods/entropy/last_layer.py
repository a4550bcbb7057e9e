"""The last linear layer as the only parameters that adapt."""

from torch import nn

from tta_pipeline.methods.entropy.entries import EntropyHyperparameters
from tta_pipeline.methods.features import find_classifier


def unfreeze_classifier(
    model: nn.Module, settings: EntropyHyperparameters, *, num_classes: int, seed: int, method: str
) -> None:
    """Let the layer of *model* with *num_classes* outputs adapt."""
    del settings, seed  # other choices of parameters need them
    find_classifier(model, num_classes=num_classes, method=f"{method}, params last").requires_grad_(True)
