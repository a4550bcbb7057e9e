"""Load the models of a benchmark file for evaluation."""

from pathlib import Path

from tta_pipeline.benchmarks.model_specs import (
    AnyModel,
    AnyPretrained,
    CheckpointModel,
    HubModel,
    OpenClipModel,
    TimmModel,
    TorchvisionModel,
    TrainedModel,
    TransformersModel,
)
from tta_pipeline.data.labels.label_files import read_classes
from tta_pipeline.data.labels.shipped_lists import shipped_classes
from tta_pipeline.errors import ClassCountError
from tta_pipeline.models.checkpoint_models import load_checkpoint_model
from tta_pipeline.models.clip_models import load_clip_model
from tta_pipeline.models.hub_models import fetch_hub_classes, load_hub_model
from tta_pipeline.models.loaded_model import LoadedModel
from tta_pipeline.models.python_models import load_python_model
from tta_pipeline.models.select_outputs import select_classes
from tta_pipeline.models.timm_models import load_timm_model
from tta_pipeline.models.torchvision_models import load_torchvision_model
from tta_pipeline.models.trained_models import load_trained_model
from tta_pipeline.models.transformers_models import load_transformers_model
from tta_pipeline.models.try_network import require_outputs


def load_source_model(
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
        model = load_trained_model(name, source_model)
    elif isinstance(spec, OpenClipModel):
        model = load_clip_model(name, spec, classes=classes, image_size=image_size, kept_features=text_features)
    elif isinstance(spec, TransformersModel):
        model = load_transformers_model(name, spec, classes=classes, image_size=image_size, kept_features=text_features)
    else:
        of_own = read_classes(spec.classes) if spec.classes else classes
        model = load_pretrained_model(name, spec, num_classes=len(of_own), image_size=image_size)
        model = _select_classes(model, spec, classes)
    if model.num_classes != len(classes):
        raise ClassCountError(
            f"model {name} predicts {model.num_classes} classes; expected the class map's {len(classes)}: "
            "use a model for these classes, or name the model's classes in its field `classes`"
        )
    return model


def load_pretrained_model(
    name: str, spec: AnyPretrained, *, num_classes: int, image_size: int | None = None
) -> LoadedModel:
    """Load the model that *spec* describes, with all its outputs.

    Args:
        name: Name of the model.
        spec: Its section in a benchmark file.
        num_classes: Number of outputs that weights from a file must have.
        image_size: As for `load_source_model`.

    Raises:
        EvaluationError: the weights are missing, unknown or not the expected ones.
    """
    if isinstance(spec, TorchvisionModel):
        return load_torchvision_model(name, spec)
    if isinstance(spec, TimmModel):
        return load_timm_model(name, spec)
    if isinstance(spec, HubModel):
        return load_hub_model(name, spec)
    if isinstance(spec, CheckpointModel):
        return load_checkpoint_model(name, spec, num_classes=num_classes)
    model = load_python_model(name, spec, num_classes=num_classes)
    if image_size is not None:
        called = f"model {name}, {spec.factory},"
        require_outputs(model.make(), num_classes=num_classes, image_size=image_size, called=called)
    return model


def _select_classes(model: LoadedModel, spec: AnyPretrained, classes: tuple[str, ...]) -> LoadedModel:
    """Return *model* with only the outputs for *classes*, if its own classes are known; otherwise with all outputs."""
    if spec.classes:
        return select_classes(model, read_classes(spec.classes), classes, named=str(spec.classes))
    if isinstance(spec, HubModel) and set(classes) <= set(labels := fetch_hub_classes(spec)):
        return select_classes(model, labels, classes, named=f"label_names of {spec.hf}")
    imagenet = shipped_classes("imagenet")
    if model.num_classes == len(imagenet) > len(classes) and set(classes) <= set(imagenet):
        return select_classes(model, imagenet, classes, named="imagenet")
    return model
