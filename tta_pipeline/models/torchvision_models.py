"""Models of torchvision with torchvision's own weights."""

from pathlib import Path
from typing import Any

import torch

from tta_pipeline.benchmarks.model_specs import TorchvisionModel
from tta_pipeline.errors import EvaluationError
from tta_pipeline.models.libraries import library_architecture
from tta_pipeline.models.loaded_model import LoadedModel
from tta_pipeline.util.nearest_names import name_choices


def load_torchvision_model(name: str, spec: TorchvisionModel) -> LoadedModel:
    """Return torchvision's model with the weights that *spec* names, and with their normalisation.

    Raises:
        EvaluationError: torchvision has no such model or weights, or they cannot be downloaded.
    """
    weights = find_weights(spec)
    transforms = weights.transforms()
    return library_architecture("torchvision", spec.architecture).make_model(
        name, _download(weights), num_classes=len(weights.meta["categories"]),
        mean=tuple(transforms.mean), std=tuple(transforms.std), weights=str(weights),
    )  # fmt: skip


def find_weights(spec: TorchvisionModel) -> Any:
    """Return the member of torchvision's enum that *spec* names; `url` has the first digits of the file's sha256.

    Raises:
        EvaluationError: torchvision has no such model or weights.
    """
    from torchvision.models import get_model_weights, list_models

    if spec.architecture not in list_models():
        known = name_choices(spec.architecture, list_models(), listed_in="torchvision.models.list_models()")
        raise EvaluationError(f"torchvision has no model {spec.architecture!r}; expected one of {known}")
    choices = get_model_weights(spec.architecture)
    if spec.weights not in choices.__members__:
        known = name_choices(spec.weights, choices.__members__, listed_in="torchvision's page of models")
        raise EvaluationError(f"{spec.architecture} has no weights {spec.weights!r}; expected one of {known}")
    return choices[spec.weights]


def _download(weights: Any) -> dict[str, torch.Tensor]:
    try:
        state: dict[str, torch.Tensor] = weights.get_state_dict(progress=False, check_hash=True)
    except (OSError, RuntimeError) as error:
        folder = Path(torch.hub.get_dir()) / "checkpoints"
        raise EvaluationError(
            f"{weights} cannot be downloaded from {weights.url} ({error}); expected a connection or a file in {folder}"
        ) from error
    return state
