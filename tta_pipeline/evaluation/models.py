"""Classifiers to evaluate, with everything a reader of a result must know about them."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tta_pipeline.benchmarks.spec import TorchvisionModel, TrainedModel
from tta_pipeline.errors import EvaluationError
from tta_pipeline.training.network import Normalized
from tta_pipeline.training.source_model import load_source_model


@dataclass(frozen=True, kw_only=True)
class LoadedModel:
    """A classifier of float images (B, 3, H, W) in [0, 1] that carries its own normalisation."""

    name: str
    make: Callable[[], nn.Module]
    """Return a fresh copy, since methods change the model they are given."""
    num_classes: int
    weights: str
    """Where the weights come from, in words."""
    weights_sha256: str
    mean: tuple[float, ...]
    std: tuple[float, ...]


def load_model(
    name: str, spec: TrainedModel | TorchvisionModel, *, source_model: Path, num_classes: int
) -> LoadedModel:
    """Load the model that *spec* describes; *source_model* is where the benchmark's trained one lies.

    Raises:
        EvaluationError: the weights are missing or unknown, or do not predict *num_classes* classes.
    """
    model = _trained(name, source_model) if isinstance(spec, TrainedModel) else _torchvision(name, spec)
    if model.num_classes != num_classes:
        raise EvaluationError(
            f"model {name} predicts {model.num_classes} classes; expected the class map's {num_classes}: "
            "use a model of these classes"
        )
    return model


def _trained(name: str, path: Path) -> LoadedModel:
    _, facts = load_source_model(path)
    return LoadedModel(
        name=name,
        make=lambda: load_source_model(path)[0],
        num_classes=len(facts.classes),
        weights=path.name,
        weights_sha256=facts.weights_sha256,
        mean=facts.mean,
        std=facts.std,
    )


def _torchvision(name: str, spec: TorchvisionModel) -> LoadedModel:
    from torchvision.models import get_model_weights, list_models

    if spec.architecture not in list_models():
        raise EvaluationError(
            f"torchvision has no model {spec.architecture!r}; expected one of {', '.join(list_models())}"
        )
    choices = get_model_weights(spec.architecture)
    if spec.weights not in choices.__members__:
        raise EvaluationError(
            f"{spec.architecture} has no weights {spec.weights!r}; expected one of {', '.join(choices.__members__)}"
        )
    weights = choices[spec.weights]
    transforms = weights.transforms()
    state = _downloaded(weights)
    return LoadedModel(
        name=name,
        make=lambda: _torchvision_network(spec.architecture, state, tuple(transforms.mean), tuple(transforms.std)),
        num_classes=len(weights.meta["categories"]),
        weights=str(weights),
        weights_sha256=_state_sha256(state),
        mean=tuple(transforms.mean),
        std=tuple(transforms.std),
    )


def _downloaded(weights: Any) -> dict[str, torch.Tensor]:
    try:
        state: dict[str, torch.Tensor] = weights.get_state_dict(progress=False, check_hash=True)
    except (OSError, RuntimeError) as error:
        folder = Path(torch.hub.get_dir()) / "checkpoints"
        raise EvaluationError(
            f"{weights} cannot be had from {weights.url} ({error}); expected a connection, or the file in {folder}"
        ) from error
    return state


def _torchvision_network(
    architecture: str, state: dict[str, torch.Tensor], mean: tuple[float, ...], std: tuple[float, ...]
) -> nn.Module:
    from torchvision.models import get_model

    network = get_model(architecture, weights=None)
    network.load_state_dict(state)
    return Normalized(network, mean=mean, std=std)


def _state_sha256(state: dict[str, torch.Tensor]) -> str:
    digest = hashlib.sha256()
    for name in sorted(state):
        digest.update(name.encode() + state[name].cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()
