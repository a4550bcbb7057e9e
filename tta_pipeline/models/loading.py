"""Load the models of a benchmark file for evaluation."""

from pathlib import Path

from tta_pipeline.benchmarks.models import (
    AnyModel,
    AnyPretrained,
    CheckpointModel,
    HubModel,
    OpenClipModel,
    TimmModel,
    TorchvisionModel,
    TrainedModel,
)
from tta_pipeline.data.labels.label_files import read_classes
from tta_pipeline.data.labels.shipped import shipped_classes
from tta_pipeline.errors import EvaluationError
from tta_pipeline.models.checkpoints import checkpoint_model
from tta_pipeline.models.clip_models import clip_model
from tta_pipeline.models.hub_models import hub_classes, hub_model
from tta_pipeline.models.loaded import LoadedModel
from tta_pipeline.models.outputs import of_some_classes
from tta_pipeline.models.python_models import python_model
from tta_pipeline.models.timm_models import timm_model
from tta_pipeline.models.torchvision_models import torchvision_model
from tta_pipeline.models.trained import trained_model
from tta_pipeline.models.trial import require_outputs


def load_model(
    name: str,
    spec: AnyModel,
    *,
    source_model: Path,
    classes: tuple[str, ...],
    image_size: int | None = None,
    text_features: Path | None = None,
) -> LoadedModel:
    """Load the model that *spec* describes.

    Args:
        name: Name of the model in the benchmark file.
        spec: Its section there.
        source_model: Path of the benchmark's trained model.
        classes: Classes of the class map.
        image_size: Height and width in pixels of images to try a network of the user's code with; None: do not try it.
        text_features: Folder that caches a CLIP's text features; None: no cache.

    Raises:
        EvaluationError: the weights are missing, unknown or not the expected ones, or do not predict *classes*.
    """
    if isinstance(spec, TrainedModel):
        model = trained_model(name, source_model)
    elif isinstance(spec, OpenClipModel):
        model = clip_model(name, spec, classes=classes, image_size=image_size, kept_features=text_features)
    else:
        of_own = read_classes(spec.classes) if spec.classes else classes
        model = loaded_model(name, spec, num_classes=len(of_own), image_size=image_size)
        model = _of_these_classes(model, spec, classes)
    if model.num_classes != len(classes):
        raise EvaluationError(
            f"model {name} predicts {model.num_classes} classes; expected the class map's {len(classes)}: "
            "use a model for these classes, or name the model's classes in its field `classes`"
        )
    return model


def loaded_model(name: str, spec: AnyPretrained, *, num_classes: int, image_size: int | None = None) -> LoadedModel:
    """Load the model that *spec* describes, with all its outputs.

    Args:
        name: Name of the model.
        spec: Its section in a benchmark file.
        num_classes: Number of outputs that weights from a file must have.
        image_size: As for `load_model`.

    Raises:
        EvaluationError: the weights are missing, unknown or not the expected ones.
    """
    if isinstance(spec, TorchvisionModel):
        return torchvision_model(name, spec)
    if isinstance(spec, TimmModel):
        return timm_model(name, spec)
    if isinstance(spec, HubModel):
        return hub_model(name, spec)
    if isinstance(spec, CheckpointModel):
        return checkpoint_model(name, spec, num_classes=num_classes)
    model = python_model(name, spec, num_classes=num_classes)
    if image_size is not None:
        called = f"model {name}, {spec.factory},"
        require_outputs(model.make(), num_classes=num_classes, image_size=image_size, called=called)
    return model


def _of_these_classes(model: LoadedModel, spec: AnyPretrained, classes: tuple[str, ...]) -> LoadedModel:
    """Return *model* with only the outputs for *classes*, if its own classes are known; otherwise with all outputs."""
    if spec.classes:
        return of_some_classes(model, read_classes(spec.classes), classes, named=str(spec.classes))
    if isinstance(spec, HubModel) and set(classes) <= set(labels := hub_classes(spec)):
        return of_some_classes(model, labels, classes, named=f"label_names of {spec.hf}")
    imagenet = shipped_classes("imagenet")
    if model.num_classes == len(imagenet) > len(classes) and set(classes) <= set(imagenet):
        return of_some_classes(model, imagenet, classes, named="imagenet")
    return model
