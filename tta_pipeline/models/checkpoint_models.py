"""Architectures of torchvision and timm with weights from the user's own file."""

import torch

from tta_pipeline.benchmarks.model_specs import CheckpointModel
from tta_pipeline.models.architecture import Architecture
from tta_pipeline.models.fitting import require_fitting
from tta_pipeline.models.libraries import library_architecture
from tta_pipeline.models.loaded_model import LoadedModel
from tta_pipeline.models.model_kind import NetworkKind, OwnTransform, Start
from tta_pipeline.models.timm_models import pretrained_settings, timm_transforms
from tta_pipeline.models.weights import read_state


class Checkpoint(NetworkKind[CheckpointModel]):
    """A network of torchvision or timm with the weights in a file.

    Weights that are missing, changed, unreadable or of another network are refused, with the names of the first that do
    not fit.
    """

    def architecture(self) -> Architecture:
        """Return the library's network."""
        return library_architecture(self.section.library, self.section.architecture)

    def load_all(self, name: str, *, num_classes: int, image_size: int | None = None) -> LoadedModel:
        """Return the network with the weights in the file."""
        del image_size
        spec = self.section
        return self.architecture().make_model(
            name, self._read_state(num_classes), num_classes=num_classes, mean=spec.mean, std=spec.std,
            weights=spec.path.name, weights_sha256=spec.sha256, key=spec.state,
        )  # fmt: skip

    def start(self) -> Start:
        """Return the weights in the file, whatever the number of their outputs."""
        return Start(self._read_state(None), self.section.mean, self.section.std, self.section.sha256)

    def own_transforms(self) -> tuple[OwnTransform, ...]:
        """Return those of timm's weights; without their tag, the file has the user's own."""
        is_published = self.section.library == "timm" and "." in self.section.architecture
        return timm_transforms(pretrained_settings(self.section.architecture)) if is_published else ()

    def check(self, *, name: str, num_classes: int | None, image_size: int) -> None:
        """Read the weights in full."""
        del name, image_size
        self._read_state(num_classes)

    def _read_state(self, num_classes: int | None) -> dict[str, torch.Tensor]:
        """Return the weights, checked to fit the network with *num_classes* outputs; None: any number."""
        path = self.section.path.expanduser()
        return require_fitting(
            self.architecture(), read_state(path, self.section.sha256, key=self.section.state),
            num_classes=num_classes, what=f"{path} does not", advice=": correct `architecture` or `path`",
        )  # fmt: skip
