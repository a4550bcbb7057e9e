"""The section of a benchmark file for a model that the user names on the command line."""

import re
from pathlib import Path

from pydantic import ValidationError

from tta_pipeline.benchmarks.model_specs import NetworkSection
from tta_pipeline.data.images.images_section import Survey
from tta_pipeline.errors import BenchmarkFileError, EvaluationError, ShardError
from tta_pipeline.extras.new_project.template import Channels, usual_normalisation
from tta_pipeline.models.load_by_name import parse_network
from tta_pipeline.models.model_kind import kind_of
from tta_pipeline.util.validation_errors import mistakes

_NONE = "none"


def draft_model(found: Survey, *, model: str, weights: str | None) -> tuple[str, NetworkSection]:
    """Return name and section of *model* for a benchmark file, with everything that can be filled in.

    Args:
        found: The images that the model is for.
        model: `torchvision:<architecture>`, `timm:<architecture>`, `hf:<org>/<name>@<commit>`, or `<module>:<name>` of
            the user's function or class.
        weights: A file; `none` for random weights; the name of weights of torchvision; None: the published ones.
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
    network: NetworkSection, weights: str | None, *, num_classes: int, mean: Channels, std: Channels
) -> NetworkSection:
    kind = kind_of(network)
    kind.check_architecture()
    if weights == _NONE:
        if untrained := network.with_random_weights(num_classes):
            return untrained
        called = network.network_name.partition(" ")[2]
        raise EvaluationError(
            f"--weights is none, but {called} is used with its published weights; expected no --weights: leave it out"
        )
    path = Path(weights).expanduser().absolute() if weights is not None and _is_file_name(weights) else None
    if path is None:
        return kind.choose_published(weights)
    if not path.is_file():
        raise EvaluationError(f"--weights is {weights}, which is not a file; expected a weights file: check the path")
    return network.with_weights_file(path, mean=mean, std=std) or kind.choose_published(weights)


def _is_file_name(weights: str) -> bool:
    return bool(Path(weights).suffix) or "/" in weights or Path(weights).is_file()


def _name_of(model: str) -> str:
    """Return a name for *model* in the file, such as `resnet50_a1_in1k`."""
    last = re.split(r"[:/]", model.partition("@")[0])[-1]
    name = re.sub(r"\W+", "_", last, flags=re.ASCII).strip("_").lower()
    return name if name[:1].isalpha() else f"model_{name}"
