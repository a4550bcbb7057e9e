"""Networks in files of other runtimes, whatever the runtime."""

from abc import ABC, abstractmethod

import torch

from tta_pipeline.benchmarks.deployed_specs import ExportedModel, OnnxModel
from tta_pipeline.models.deployed_network import Answer, DeployedNetwork
from tta_pipeline.models.loaded_model import LoadedModel


class Program(ABC):
    """A loaded network that computes images."""

    @property
    @abstractmethod
    def fixed_batch(self) -> int | None:
        """Number of images that it takes at a time; None: any."""

    @abstractmethod
    def compute(self, images: torch.Tensor) -> Answer:
        """Return what it computes of *images*, float32 (B, 3, H, W)."""


def make_program_model(
    name: str, spec: OnnxModel | ExportedModel, program: Program, *, num_classes: int, image_size: int | None
) -> LoadedModel:
    """Return the model *name*, which *program* computes, tried on images of *image_size* pixels (None: not tried).

    Raises:
        EvaluationError: it does not answer with scores of *num_classes*, or its head does not fit.
    """

    def make() -> DeployedNetwork:
        return DeployedNetwork(
            program.compute,
            spec=spec,
            named=f"model {name}, {spec.path},",
            sha256=spec.sha256,
            num_classes=num_classes,
            are_probabilities=spec.scores == "probabilities",
            fixed_batch=program.fixed_batch,
        )

    if image_size is not None:
        make().probe(image_size)
    return LoadedModel(
        name=name, make_network=make, num_classes=num_classes, weights=spec.path.name, weights_sha256=spec.sha256,
        mean=spec.mean, std=spec.std, architecture=spec.called.partition(" ")[2],
        code={"scores": spec.scores, "head_sha256": spec.head_sha256},
    )  # fmt: skip
