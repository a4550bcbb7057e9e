"""The models of a benchmark file, loaded to be evaluated."""

from pathlib import Path

from tta_pipeline.benchmarks.models import AnyModel, CheckpointModel, TimmModel, TorchvisionModel, TrainedModel
from tta_pipeline.errors import EvaluationError
from tta_pipeline.labels.label_files import read_classes
from tta_pipeline.models.checkpoints import checkpoint_model
from tta_pipeline.models.loaded import LoadedModel
from tta_pipeline.models.outputs import of_some_classes
from tta_pipeline.models.python_models import python_model
from tta_pipeline.models.timm_models import timm_model
from tta_pipeline.models.torchvision_models import torchvision_model
from tta_pipeline.models.trained import trained_model
from tta_pipeline.models.trial import require_outputs

_IMAGENET = Path("imagenet")
"""The list of ImageNet's 1,000 classes."""


def load_model(
    name: str, spec: AnyModel, *, source_model: Path, classes: tuple[str, ...], image_size: int | None = None
) -> LoadedModel:
    """Load the model that *spec* describes.

    Args:
        name: Name of the model in the benchmark file.
        spec: Its section there.
        source_model: Path of the benchmark's trained model.
        classes: Classes of the class map.
        image_size: Height and width of the images in pixels, with which a network of the user's code is tried; None:
            it is not tried.

    Raises:
        EvaluationError: the weights are missing, unknown or not the expected ones, or do not predict *classes*, those
            of the class map.
    """
    if isinstance(spec, TrainedModel):
        model = trained_model(name, source_model)
    elif isinstance(spec, TorchvisionModel):
        model = torchvision_model(name, spec)
    elif isinstance(spec, TimmModel):
        model = timm_model(name, spec)
    else:
        num_classes = len(read_classes(spec.classes) if spec.classes else classes)
        if isinstance(spec, CheckpointModel):
            model = checkpoint_model(name, spec, num_classes=num_classes)
        else:
            model = python_model(name, spec, num_classes=num_classes)
            if image_size is not None:
                require_outputs(
                    model.make(),
                    num_classes=num_classes,
                    image_size=image_size,
                    called=f"model {name}, {spec.factory},",
                )
    own_classes = None if isinstance(spec, TrainedModel) else spec.classes or _imagenet(model, classes)
    if own_classes is not None:
        model = of_some_classes(model, read_classes(own_classes), classes, named=own_classes)
    if model.num_classes != len(classes):
        raise EvaluationError(
            f"model {name} predicts {model.num_classes} classes; expected the class map's {len(classes)}: "
            "use a model for these classes, or name the model's classes in its field `classes`"
        )
    return model


def _imagenet(model: LoadedModel, classes: tuple[str, ...]) -> Path | None:
    """Return the name of ImageNet's list if *classes* are some of its classes and *model* has as many outputs."""
    known = read_classes(_IMAGENET)
    return _IMAGENET if model.num_classes == len(known) > len(classes) and set(classes) <= set(known) else None
