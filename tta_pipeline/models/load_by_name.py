"""Load a classifier by its name, for code that imports this package; a benchmark file has its models in `models`."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from pydantic import TypeAdapter, ValidationError

from tta_pipeline.benchmarks.model_specs import (
    AnyModel,
    HubModel,
    ModelSection,
    NetworkSection,
    PythonModel,
    TimmModel,
    TorchvisionModel,
)
from tta_pipeline.errors import EvaluationError
from tta_pipeline.models.architecture import NetworkWeights
from tta_pipeline.models.fitting import require_fitting
from tta_pipeline.models.loaded_model import IMAGENET_MEAN, IMAGENET_STD, LoadedModel
from tta_pipeline.models.model_kind import kind_of
from tta_pipeline.models.normalized import Normalized
from tta_pipeline.models.trained_models import load_trained_model
from tta_pipeline.results.reader_notes import UNTRAINED
from tta_pipeline.util.user_functions import is_reference
from tta_pipeline.util.validation_errors import mistakes

_NUM_IMAGENET = 1000
Weights = str | Path | Mapping[str, torch.Tensor] | None


class Classifier(Normalized):
    """A classifier of images, float (B, 3, H, W) in [0, 1], with its normalisation and origin."""

    def __init__(self, facts: LoadedModel) -> None:
        super().__init__(facts.make_network(), mean=facts.mean, std=facts.std)
        self.architecture = facts.architecture
        self.weights = facts.weights
        """Description of the weights that were loaded."""


def load_model(
    name: str | Mapping[str, object],
    *,
    num_classes: int | None = None,
    weights: Weights = "pretrained",
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
) -> Classifier:
    """Return a classifier of images in [0, 1] that first subtracts *mean* and divides by *std*.

    Args:
        name: One of: `timm:<architecture>`; `torchvision:<architecture>`; `hf-hub:<org>/<name>@<commit>`, a model for
            timm on the Hugging Face Hub; `<module>:<name>`, your function or class that returns a network of
            normalised images; the file of a benchmark's trained source model, such as
            `data/digits_c/source_models/digits_cnn.safetensors`, which has its own weights, mean and std; or a model's
            section in a benchmark file, such as `{"kind": "open_clip", ...}`, which sets everything but *num_classes*.
        num_classes: Number of outputs that the classifier must have; None: as many as the weights have.
        weights: "pretrained": the weights of timm, or torchvision's newest (names such as `IMAGENET1K_V1` select
            others); a path: a state dict, safetensors or `.pth`, loaded without running code; a state dict; None:
            untrained.
        mean: Mean of each channel of images in [0, 1]; None: as published with the weights.
        std: Standard deviation of each channel; None: as published with the weights.

    Raises:
        EvaluationError: architecture or weights do not exist, do not fit, or have another number of outputs; mean and
            std are missing for your weights, or given for a source model, which contains its own; or your function
            raises or returns something else.
    """
    try:
        if not isinstance(name, str):
            _require_nothing_else("a description", weights=weights, mean=mean, std=std)
            facts = _load_section(dict(name), num_classes=num_classes)
        elif Path(name).suffix == ".safetensors":
            _require_nothing_else(f"the source model {name}", weights=weights, mean=mean, std=std)
            facts = load_trained_model(Path(name).name, Path(name))
        else:
            facts = _load_named(name, weights, num_classes=num_classes, mean=mean, std=std)
    except ValidationError as error:
        raise EvaluationError("; ".join(mistakes(error, "model", name))) from None
    if num_classes is not None and facts.num_classes != num_classes:
        raise EvaluationError(
            f"{name} with these weights has {facts.num_classes} outputs; expected {num_classes}: use other weights, "
            "or None for an untrained network"
        )
    classifier = Classifier(facts)
    classifier.to(memory_format=torch.channels_last)
    return classifier.eval()


def _require_nothing_else(
    name: str, *, weights: Weights, mean: Sequence[float] | None, std: Sequence[float] | None
) -> None:
    """Refuse arguments that would be ignored."""
    given: dict[str, object] = {field: value for field, value in (("mean", mean), ("std", std)) if value is not None}
    if weights != "pretrained":
        given["weights"] = weights
    for field, value in given.items():
        raise EvaluationError(
            f"{field} is {value!r:.60}, but {name} has its own weights, mean and std; expected no value: leave "
            f"{field} out"
        )


def _load_section(section: dict[str, object], *, num_classes: int | None) -> LoadedModel:
    """Return the model that a section of a benchmark file describes."""
    spec: ModelSection = TypeAdapter(AnyModel).validate_python(section)
    return kind_of(spec).load_described(num_classes)


def _load_named(
    name: str,
    weights: Weights,
    *,
    num_classes: int | None,
    mean: Sequence[float] | None,
    std: Sequence[float] | None,
) -> LoadedModel:
    given = {field: tuple(values) for field, values in (("mean", mean), ("std", std)) if values is not None}
    if isinstance(weights, str) and not Path(weights).suffix:
        published = kind_of(parse_network(name)).load_published(weights)
        return replace(published, mean=given.get("mean", published.mean), std=given.get("std", published.std))
    network = parse_network(name)
    if num_classes is None and (weights is not None or network.needs_num_classes):
        raise EvaluationError(
            "num_classes is missing; expected a number for your own weights or network: pass num_classes"
        )
    if weights is None:
        architecture, num_outputs = kind_of(network).architecture(), num_classes or _NUM_IMAGENET
        state = architecture.make(num_outputs).state_dict()
        usual = {"mean": IMAGENET_MEAN, "std": IMAGENET_STD} | given
        loaded = NetworkWeights(
            state=state, num_classes=num_outputs, mean=usual["mean"], std=usual["std"], origin=UNTRAINED
        )
        return architecture.make_model(architecture.name, loaded)
    if len(given) < 2:
        raise EvaluationError(
            "mean or std is missing; expected both for your own weights: pass the values with which the model was "
            "trained"
        )
    assert num_classes is not None
    if isinstance(weights, str | Path):
        return _load_file(network, Path(weights), given, num_classes=num_classes)
    return make_model_of_state(network, dict(weights), num_classes=num_classes, **given)


def parse_network(name: str) -> NetworkSection:
    """Return the section of a benchmark file for *name*.

    Raises:
        EvaluationError: *name* has none of the known forms.
        ValidationError: a part of it is invalid.
    """
    library, _, architecture = name.partition(":")
    if library == "torchvision" and architecture:
        return TorchvisionModel(kind="torchvision", architecture=architecture)
    if library == "timm" and architecture:
        return TimmModel(kind="timm", architecture=architecture)
    if library in ("hf", "hf-hub"):
        repository, _, revision = architecture.partition("@")
        return HubModel(kind="hf", hf=repository, revision=revision)
    if is_reference(name):
        return PythonModel(kind="python", factory=name)
    raise EvaluationError(
        f"The model is {name!r}; expected timm:<architecture>, torchvision:<architecture>, "
        "hf-hub:<org>/<name>@<commit>, your <module>:<name>, or a benchmark's source_model.safetensors"
    )


def _load_file(
    network: NetworkSection, path: Path, given: Mapping[str, tuple[float, ...]], *, num_classes: int
) -> LoadedModel:
    """Return *network* with the weights in the file *path*."""
    section = network.with_weights_file(path, **given)
    if section is None:
        called = network.network_name.partition(" ")[2]
        raise EvaluationError(
            f"weights is {path}; expected pretrained or None for {called}: to use your own file, load its state dict "
            "first"
        )
    return kind_of(section).load_all(section.network_name, num_classes=num_classes)


def make_model_of_state(
    network: NetworkSection,
    state: dict[str, torch.Tensor],
    *,
    num_classes: int,
    mean: tuple[float, ...],
    std: tuple[float, ...],
) -> LoadedModel:
    """Return *network* with the weights *state*.

    Raises:
        EvaluationError: its architecture does not exist, or the weights do not fit it.
    """
    architecture = kind_of(network).architecture()
    fitting = require_fitting(architecture, state, num_classes=num_classes, what="the weights do not")
    loaded = NetworkWeights(state=fitting, num_classes=num_classes, mean=mean, std=std, origin="a state dict")
    return architecture.make_model(architecture.name, loaded)
