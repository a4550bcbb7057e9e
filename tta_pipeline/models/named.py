"""Classifiers by name, for code that imports this package; a benchmark file describes its models in `models`."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from pydantic import ValidationError

from tta_pipeline.benchmarks.models import CheckpointModel, TimmModel, TorchvisionModel
from tta_pipeline.errors import EvaluationError
from tta_pipeline.models.checkpoints import checkpoint_model
from tta_pipeline.models.fitting import require_fitting
from tta_pipeline.models.libraries import library_architecture
from tta_pipeline.models.loaded import LoadedModel
from tta_pipeline.models.normalized import Normalized
from tta_pipeline.models.timm_models import timm_model
from tta_pipeline.models.torchvision_models import torchvision_model
from tta_pipeline.models.trained import trained_model
from tta_pipeline.shards.manifest import file_sha256

_LIBRARIES = ("timm", "torchvision")
_IMAGENET = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}
"""Mean and std of ImageNet's training images; untrained networks get them."""
_NUM_IMAGENET = 1000
Weights = str | Path | Mapping[str, torch.Tensor] | None


class Classifier(Normalized):
    """A classifier of images, float (B, 3, H, W) in [0, 1], that normalises its input and records its origin."""

    def __init__(self, facts: LoadedModel) -> None:
        super().__init__(facts.make_network(), mean=facts.mean, std=facts.std)
        self.architecture = facts.architecture
        self.weights = facts.weights
        """Description of the weights that were loaded."""


def load_model(
    name: str,
    *,
    num_classes: int | None = None,
    weights: Weights = "pretrained",
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
) -> Classifier:
    """Return a classifier of images in [0, 1]; it first subtracts *mean* and divides by *std*.

    Args:
        name: `timm:<architecture>`, `torchvision:<architecture>`, or the file of a benchmark's trained source
            model, such as `data/digits_c/source_model.safetensors`, which has its own weights, mean and std.
        num_classes: Number of outputs that it must have; None: as many as the weights have.
        weights: pretrained: those of timm, or torchvision's newest (names such as `IMAGENET1K_V1` select others);
            a path: a state dict, safetensors or `.pth`, loaded without running code; a state dict; None: untrained.
        mean: Mean of each channel of images in [0, 1]; None: as published with the weights.
        std: Standard deviation of each channel; None: as published with the weights.

    Raises:
        EvaluationError: architecture or weights do not exist, do not fit, or have another number of outputs; or mean
            and std are missing for weights of your own, or given for a source model, which has them.
    """
    library, _, architecture = name.partition(":")
    if (library not in _LIBRARIES or not architecture) and Path(name).suffix != ".safetensors":
        raise EvaluationError(
            f"the model is {name!r}; expected timm:<architecture>, torchvision:<architecture> or the .safetensors file "
            "of a benchmark's source model"
        )
    try:
        if library in _LIBRARIES:
            facts = _described(library, architecture, weights, num_classes=num_classes, mean=mean, std=std)
        else:
            _require_nothing_else(name, weights=weights, mean=mean, std=std)
            facts = trained_model(Path(name).name, Path(name))
    except ValidationError as error:
        problem = error.errors()[0]
        raise EvaluationError(f"{problem['loc'][0]} is {problem['input']!r:.60}; {problem['msg']}") from None
    if num_classes is not None and facts.num_classes != num_classes:
        raise EvaluationError(
            f"{name} with these weights has {facts.num_classes} outputs; expected {num_classes}: use other weights, or "
            "None for an untrained network"
        )
    classifier = Classifier(facts)
    classifier.to(memory_format=torch.channels_last)
    return classifier.eval()


def _require_nothing_else(
    name: str, *, weights: Weights, mean: Sequence[float] | None, std: Sequence[float] | None
) -> None:
    """Refuse arguments that a source model would ignore."""
    given: dict[str, object] = {field: value for field, value in (("mean", mean), ("std", std)) if value is not None}
    if weights != "pretrained":
        given["weights"] = weights
    for field, value in given.items():
        raise EvaluationError(
            f"{field} is {value!r:.60}; expected none with the source model {name}, which has its own weights, mean "
            f"and std: leave {field} out"
        )


def _described(
    library: str,
    architecture: str,
    weights: Weights,
    *,
    num_classes: int | None,
    mean: Sequence[float] | None,
    std: Sequence[float] | None,
) -> LoadedModel:
    given = {name: tuple(values) for name, values in (("mean", mean), ("std", std)) if values is not None}
    if weights is None:
        return untrained_model(library, architecture, num_classes=num_classes or _NUM_IMAGENET, **(_IMAGENET | given))
    if isinstance(weights, str) and not Path(weights).suffix:
        published = _published(library, architecture, weights)
        return replace(published, mean=given.get("mean", published.mean), std=given.get("std", published.std))
    if len(given) < 2 or num_classes is None:
        raise EvaluationError(
            "mean, std or num_classes is missing; expected all three with weights of your own, as the model was trained"
        )
    if isinstance(weights, str | Path):
        path = Path(weights)
        spec = CheckpointModel.model_validate(
            {"kind": "checkpoint", "library": library, "architecture": architecture, "path": path, **given,
             "sha256": file_sha256(path) if path.is_file() else "0" * 64}
        )  # fmt: skip
        return checkpoint_model(architecture, spec, num_classes=num_classes)
    return model_of_state(library, architecture, dict(weights), num_classes=num_classes, **given)


def untrained_model(
    library: str, architecture: str, *, num_classes: int, mean: tuple[float, ...], std: tuple[float, ...]
) -> LoadedModel:
    """Return the architecture with random weights.

    Raises:
        EvaluationError: the architecture does not exist.
    """
    made = library_architecture(library, architecture)
    state = made.make(num_classes).state_dict()
    return made.with_state(architecture, state, num_classes=num_classes, mean=mean, std=std, weights="untrained")


def model_of_state(
    library: str,
    architecture: str,
    state: dict[str, torch.Tensor],
    *,
    num_classes: int,
    mean: tuple[float, ...],
    std: tuple[float, ...],
) -> LoadedModel:
    """Return the architecture with the weights *state*.

    Raises:
        EvaluationError: the architecture does not exist, or the weights do not fit it.
    """
    made = library_architecture(library, architecture)
    fitting = require_fitting(made, state, num_classes=num_classes, what="the weights do not")
    return made.with_state(architecture, fitting, num_classes=num_classes, mean=mean, std=std, weights="a state dict")


def _published(library: str, architecture: str, weights: str) -> LoadedModel:
    if library == "torchvision":
        named = "DEFAULT" if weights == "pretrained" else weights
        return torchvision_model(
            architecture, TorchvisionModel(kind="torchvision", architecture=architecture, weights=named)
        )
    if weights != "pretrained":
        raise EvaluationError(f"weights is {weights!r}; expected pretrained, a file, a state dict or None with timm")
    return timm_model(architecture, TimmModel(kind="timm", architecture=architecture))
