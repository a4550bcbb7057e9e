"""Architectures of torchvision and timm with weights from the user's own file."""

import torch

from tta_pipeline.benchmarks.model_specs import CheckpointModel
from tta_pipeline.models.fitting import require_fitting
from tta_pipeline.models.libraries import library_architecture
from tta_pipeline.models.loaded_model import LoadedModel
from tta_pipeline.models.weights import read_state


def load_checkpoint_model(name: str, spec: CheckpointModel, *, num_classes: int) -> LoadedModel:
    """Return the architecture of *spec* with the weights in its file.

    Raises:
        EvaluationError: see `read_checkpoint_state`.
    """
    return library_architecture(spec.library, spec.architecture).make_model(
        name, read_checkpoint_state(spec, num_classes=num_classes), num_classes=num_classes, mean=spec.mean,
        std=spec.std,
        weights=spec.path.name, weights_sha256=spec.sha256, key=spec.state,
    )  # fmt: skip


def read_checkpoint_state(spec: CheckpointModel, *, num_classes: int | None) -> dict[str, torch.Tensor]:
    """Return the weights in the file of *spec*, checked to fit its architecture.

    Args:
        spec: The model in the benchmark file.
        num_classes: Number of outputs that the weights must have; None: any number.

    Raises:
        EvaluationError: the weights are missing, changed, unreadable or of another network. The message has the names
            of the first weights that do not fit.
    """
    path = spec.path.expanduser()
    return require_fitting(
        library_architecture(spec.library, spec.architecture), read_state(path, spec.sha256, key=spec.state),
        num_classes=num_classes, what=f"{path} does not", advice=": correct `architecture` or `path`",
    )  # fmt: skip
