"""Test-time adaptation: one file for each method, behind one small interface."""

import importlib
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from tta_pipeline.errors import AdaptationError
from tta_pipeline.methods.catalogue import METHODS, find_method
from tta_pipeline.methods.entry import MethodEntry
from tta_pipeline.util.own_code import describe_raised, place_of
from tta_pipeline.util.validation_errors import mistakes

if TYPE_CHECKING:
    import torch

    from tta_pipeline.methods.method import Method, SourceData

__all__ = ["METHODS", "build"]


def build(
    method: str,
    model: "torch.nn.Module",
    *,
    num_classes: int,
    preset: str = "imagenet",
    source_data: "SourceData | None" = None,
    seed: int = 0,
    batch_size: int | None = None,
    **hyperparameters: Any,
) -> "Method":
    """Return *method* applied to *model*, ready to predict and adapt.

    Args:
        method: A name in `METHODS`, the name of a method that an installed package adds, or the import path
            `<module>:<name>` of a `MethodEntry`.
        model: Maps float images (B, 3, H, W) in [0, 1] to logits (B, *num_classes*); its first layer normalises. The
            method owns it from here on.
        num_classes: Number of classes.
        preset: The benchmark family whose settings the method's authors published: "imagenet", "cifar", or for a ViT-B
            on ImageNet "imagenet_vit", whose learning rates are proportional to *batch_size* (None: 64).
        source_data: Batches of clean images and their labels, for methods that need them; see `method`.
        seed: Seed of all random draws of the method.
        batch_size: Number of images in a batch of the stream, or None if unknown. A method that needs larger batches
            raises an error.
        hyperparameters: Hyperparameters that override the preset.

    Raises:
        AdaptationError: the method or the preset is unknown, a hyperparameter is invalid, or the method cannot
            use the model, the source data or the batch size.
        EvaluationError: a user's own method raised an error.
    """
    try:
        entry = find_method(method)
        settings = entry.configure(preset, hyperparameters, batch_size=batch_size)
        entry.require_batch_size(batch_size)
    except ValidationError as error:
        raise AdaptationError(f"{method}: {'; '.join(mistakes(error, ''))}") from None
    except ValueError as error:
        raise AdaptationError(f"{method}: {error}") from error
    from tta_pipeline.methods.own_methods import naming_own_code

    kind = import_implementation(entry)
    with naming_own_code(method, kind, "__init__", expected="a class that is built with the arguments of `Method`"):
        built = kind(model, settings, num_classes=num_classes, source_data=source_data, seed=seed)
    if ":" not in method or "name" not in vars(type(built)):  # an inherited name is another method's
        built.name = entry.named(method, preset, settings)
    return built


def import_implementation(entry: MethodEntry) -> "type[Method]":
    """Import the class that *entry* names.

    Raises:
        AdaptationError: the module of the class raised on import, or lacks the class.
    """
    module, _, name = entry.implementation.partition(":")
    try:
        implementation: object = getattr(importlib.import_module(module), name)
    except (Exception, SystemExit) as error:  # a user's module can raise anything on import
        raise AdaptationError(
            f"importing {entry.implementation!r} raised {describe_raised(error)}; expected a method class: fix the "
            "error in that module"
        ) from error
    from tta_pipeline.methods.method import Method

    if not (isinstance(implementation, type) and issubclass(implementation, Method)):
        raise AdaptationError(
            f"{entry.implementation}{place_of(implementation)} is not a method; expected a subclass of "
            "tta_pipeline.methods.method.Method: derive it from that class"
        )
    return implementation
