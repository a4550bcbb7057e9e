"""Test-time adaptation: one file for each method, behind one small interface."""

import importlib
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from tta_pipeline.adaptation.catalogue import METHODS, PRESETS
from tta_pipeline.errors import AdaptationError

if TYPE_CHECKING:
    import torch

    from tta_pipeline.adaptation.method import Method

__all__ = ["METHODS", "build"]


def build(
    method: str,
    model: "torch.nn.Module",
    *,
    num_classes: int,
    preset: str = "imagenet",
    source_data: "Iterable[torch.Tensor] | None" = None,
    **hyperparameters: Any,
) -> "Method":
    """Return *method* applied to *model*, ready to predict and adapt.

    Args:
        method: A name in `METHODS`.
        model: Takes float images (B, 3, H, W) in [0, 1], its own normalisation being its first layer, and gives
            logits (B, *num_classes*). The method owns it from here on.
        num_classes: Number of classes.
        preset: The benchmark family whose settings the method's authors published, "imagenet" or "cifar".
        source_data: Batches of clean images, for methods that need some.
        hyperparameters: Changes to the preset.

    Raises:
        AdaptationError: the method or the preset is unknown, a hyperparameter is wrong, or the model does not suit.
    """
    if method not in METHODS:
        raise AdaptationError(f"found method {method!r}; expected one of {', '.join(METHODS)}")
    if preset not in PRESETS:
        raise AdaptationError(f"found preset {preset!r}; expected one of {', '.join(PRESETS)}")
    entry = METHODS[method]
    try:
        settings = entry.configure(preset, hyperparameters)
    except ValueError as error:
        raise AdaptationError(f"hyperparameters of {method}: {error}") from error
    module, _, name = entry.implementation.partition(":")
    implementation: type[Method] = getattr(importlib.import_module(module), name)
    return implementation(model, settings, num_classes=num_classes, source_data=source_data)
