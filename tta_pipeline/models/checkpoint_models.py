"""Architectures of torchvision and timm with weights from the user's own file."""

from tta_pipeline.benchmarks.model_specs import CheckpointModel, TimmModel
from tta_pipeline.models.architecture import Architecture, NetworkWeights
from tta_pipeline.models.fitting import read_fitting_weights
from tta_pipeline.models.libraries import library_architecture
from tta_pipeline.models.model_kind import NetworkKind, OwnTransform
from tta_pipeline.models.timm_models import Timm


class Checkpoint(NetworkKind[CheckpointModel]):
    """A network of torchvision or timm with the weights in a file.

    Weights that are missing, changed, unreadable or of another network raise an error, with the names of the first
    ones that do not fit.
    """

    def architecture(self) -> Architecture:
        """Return the library's network."""
        return library_architecture(self.section.library, self.section.architecture)

    def weights(self, num_classes: int | None) -> NetworkWeights:
        """Return the weights in the file, checked to fit the network."""
        spec = self.section
        return read_fitting_weights(
            self.architecture(), spec.path, sha256=spec.sha256, key=spec.state, mean=spec.mean, std=spec.std,
            num_classes=num_classes, fields="`architecture` or `path`",
        )  # fmt: skip

    def own_transforms(self) -> tuple[OwnTransform, ...]:
        """Return the transforms of timm's weights; without their tag, the file contains the user's own weights."""
        if self.section.library != "timm" or "." not in self.section.architecture:
            return ()
        return Timm(TimmModel(kind="timm", architecture=self.section.architecture)).own_transforms()

    def check(self, *, name: str, num_classes: int | None, image_size: int) -> None:
        """Read the weights in full."""
        del name, image_size
        self.weights(num_classes)
