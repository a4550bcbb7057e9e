"""Models of torchvision with torchvision's own weights."""

from pathlib import Path
from typing import Any

import torch

from tta_pipeline.benchmarks.model_specs import TorchvisionModel
from tta_pipeline.errors import EvaluationError
from tta_pipeline.models.architecture import Architecture, NetworkWeights
from tta_pipeline.models.libraries import library_architecture
from tta_pipeline.models.loaded_model import LoadedModel
from tta_pipeline.models.model_kind import NetworkKind, OwnTransform
from tta_pipeline.util.nearest_names import name_choices


class Torchvision(NetworkKind[TorchvisionModel]):
    """A network of torchvision with the weights that its section names, and with their normalisation."""

    def architecture(self) -> Architecture:
        """Return torchvision's network."""
        return library_architecture("torchvision", self.section.architecture)

    def weights(self, num_classes: int | None) -> NetworkWeights:
        """Return torchvision's weights, which are downloaded."""
        del num_classes
        weights = _find_weights(self.section)
        own, num_outputs = weights.transforms(), len(weights.meta["categories"])
        return NetworkWeights(
            state=_download(weights), num_classes=num_outputs, mean=tuple(own.mean), std=tuple(own.std),
            origin=str(weights),
        )  # fmt: skip

    def load_published(self, weights: str) -> LoadedModel:
        """Return the model with *weights* of torchvision's enum, or with its newest."""
        chosen = self.section.model_copy(update={"weights": "DEFAULT" if weights == "pretrained" else weights})
        return Torchvision(chosen).load_all(chosen.architecture, num_classes=0)

    def start_identity(self) -> str:
        """Return the address of the weights, since `DEFAULT` means the newest ones."""
        return str(_find_weights(self.section).url)

    def own_transforms(self) -> tuple[OwnTransform, ...]:
        """Return the transform of the weights."""
        own = _find_weights(self.section).transforms()
        return (OwnTransform(size=own.crop_size[0], resize=own.resize_size[0], interpolation=own.interpolation.value),)

    def check(self, *, name: str, num_classes: int | None, image_size: int) -> None:
        """Raise an error if torchvision does not list the weights."""
        del name, num_classes, image_size
        self.check_architecture()

    def check_architecture(self) -> None:
        """Raise an error if torchvision does not list the model or the weights."""
        _find_weights(self.section)

    def choose_published(self, weights: str | None) -> TorchvisionModel:
        """Return the section with the name of the newest weights instead of `DEFAULT`."""
        chosen = self.section.model_copy(update={"weights": weights or "DEFAULT"})
        return self.section.model_copy(update={"weights": _find_weights(chosen).name})


def _find_weights(spec: TorchvisionModel) -> Any:
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
            f"{weights} cannot be downloaded from {weights.url} ({error}); expected a connection, or the file in "
            f"{folder}: download it there"
        ) from error
    return state
