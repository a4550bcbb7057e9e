"""The section of a benchmark file for a model that the user names on the command line."""

import re
from pathlib import Path

from pydantic import ValidationError

from tta_pipeline.benchmarks.model_specs import (
    AnyPretrained,
    CheckpointModel,
    HubModel,
    PythonModel,
    TimmModel,
    TorchvisionModel,
)
from tta_pipeline.benchmarks.user_functions import load_function
from tta_pipeline.data.sources.source_section import Survey
from tta_pipeline.errors import BenchmarkFileError, EvaluationError, ShardError
from tta_pipeline.extras.new_project.template import Channels, usual_normalisation
from tta_pipeline.models.libraries import import_timm
from tta_pipeline.models.load_by_name import parse_network
from tta_pipeline.models.torchvision_models import find_weights
from tta_pipeline.util.files import hash_file
from tta_pipeline.util.nearest_names import name_choices
from tta_pipeline.util.validation_errors import mistakes

_NONE = "none"


def draft_model(found: Survey, *, model: str, weights: str | None) -> tuple[str, AnyPretrained]:
    """Return name and section of *model* for a benchmark file, with everything that can be filled in.

    Args:
        found: The images that the model is for.
        model: `torchvision:<architecture>`, `timm:<architecture>`, `hf:<org>/<name>@<commit>`, or `<module>:<name>` of
            a function or class of the user's own.
        weights: A file; `none` for random weights; the name of weights of torchvision; None: the published ones.

    Raises:
        BenchmarkFileError: the model or its weights do not exist, or do not go together.
    """
    mean, std = usual_normalisation(found.fitting_size)
    try:
        network = parse_network(model)
        return _name_of(model), _section(network, weights, num_classes=found.num_labels, mean=mean, std=std)
    except ValidationError as error:
        raise BenchmarkFileError(f"--model {model}: {'; '.join(mistakes(error, ''))}") from None
    except (EvaluationError, ShardError, ValueError) as error:
        raise BenchmarkFileError(f"--model {model}: {error}") from None


def _section(
    network: TorchvisionModel | TimmModel | HubModel | PythonModel,
    weights: str | None,
    *,
    num_classes: int,
    mean: Channels,
    std: Channels,
) -> AnyPretrained:
    library = "" if isinstance(network, HubModel | PythonModel) else network.kind
    _require_architecture(network)
    if weights == _NONE:
        return _untrained(network, num_classes=num_classes)
    path = Path(weights).expanduser().absolute() if weights is not None and _is_file_name(weights) else None
    if path is not None and not path.is_file():
        raise EvaluationError(f"--weights is {weights}, which is no file; expected a file of weights: correct it")
    if path is not None and isinstance(network, PythonModel):
        described = {"weights": path, "sha256": hash_file(path), "mean": mean, "std": std}
        return PythonModel.model_validate({"kind": "python", "factory": network.factory, **described})
    if path is not None and isinstance(network, TorchvisionModel | TimmModel):
        described = {"path": path, "sha256": hash_file(path), "mean": mean, "std": std}
        return CheckpointModel.model_validate(
            {"kind": "checkpoint", "library": library, "architecture": network.architecture, **described}
        )
    if isinstance(network, PythonModel):
        raise EvaluationError("--weights is missing; expected a file with the weights of your own network, or none")
    if isinstance(network, TorchvisionModel):
        chosen = network.model_copy(update={"weights": weights or "DEFAULT"})
        return network.model_copy(update={"weights": find_weights(chosen).name})
    if weights is not None:
        raise EvaluationError(f"--weights is {weights}; expected a file, none, or no --weights for the published ones")
    return network


def _require_architecture(network: AnyPretrained) -> None:
    """Refuse an architecture that its library lacks, and a network that its module lacks."""
    if isinstance(network, PythonModel):
        load_function(network.factory)
    if isinstance(network, TorchvisionModel):
        find_weights(network)
    if isinstance(network, TimmModel):
        known = import_timm().list_models()
        if network.architecture.partition(".")[0] not in known:
            choices = name_choices(network.architecture, known, listed_in="timm.list_models()")
            raise EvaluationError(f"timm has no model {network.architecture!r}; expected one of {choices}")


def _untrained(network: TorchvisionModel | TimmModel | HubModel | PythonModel, *, num_classes: int) -> PythonModel:
    """Return the section of *network* with random weights."""
    if isinstance(network, HubModel):
        raise EvaluationError(f"--weights is none; expected the published weights of {network.hf}: leave --weights out")
    if isinstance(network, PythonModel):
        return network.model_copy(update={"weights": _NONE})
    factory, arguments = f"torchvision.models:{network.architecture}", dict[str, object]()
    if isinstance(network, TimmModel):
        factory, arguments = "timm:create_model", {"model_name": network.architecture.partition(".")[0]}
    arguments["num_classes"] = num_classes
    return PythonModel.model_validate({"kind": "python", "factory": factory, "arguments": arguments, "weights": _NONE})


def _is_file_name(weights: str) -> bool:
    return bool(Path(weights).suffix) or "/" in weights or Path(weights).is_file()


def _name_of(model: str) -> str:
    """Return a name for *model* in the file, such as `resnet50_a1_in1k`."""
    last = re.split(r"[:/]", model.partition("@")[0])[-1]
    name = re.sub(r"\W+", "_", last, flags=re.ASCII).strip("_").lower()
    return name if name[:1].isalpha() else f"model_{name}"
