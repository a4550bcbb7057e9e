"""A classifier to evaluate, with everything that a result records about it."""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import nn

from tta_pipeline.models.class_outputs import ClassOutputs
from tta_pipeline.models.normalized import Normalized
from tta_pipeline.util.json_values import JsonObject

IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""Mean and standard deviation of ImageNet's training images, the default of untrained networks."""


@dataclass(frozen=True, kw_only=True)
class LoadedModel:
    """A classifier of float images (B, 3, H, W) in [0, 1] with its own normalisation."""

    name: str
    make_network: Callable[[], nn.Module]
    """Function that returns a fresh network of normalised images, since methods change their network."""
    num_classes: int
    """Number of outputs, to which methods adapt: one for each class, unless there are `class_outputs`."""
    weights: str
    """Description of the origin of the weights."""
    weights_sha256: str
    mean: tuple[float, ...]
    std: tuple[float, ...]
    architecture: str
    """Library and architecture, such as `timm resnet50`."""
    code: JsonObject = field(default_factory=dict)
    """Other facts that determine the logits, such as the hash of a factory's source; empty if there are none."""
    outputs: tuple[int, ...] | None = None
    """Indices of the network's outputs that the classifier uses; None: all, in order."""
    class_outputs: ClassOutputs | None = None
    """How the classifier's outputs become classes when predictions are scored; None: each output is a class."""

    def make(self) -> Normalized:
        """Return a fresh classifier of images in [0, 1]."""
        return Normalized(self.make_network(), mean=self.mean, std=self.std)

    @property
    def num_labels(self) -> int:
        """Number of classes that predictions are scored on."""
        return len(self.class_outputs.outputs) if self.class_outputs else self.num_classes

    def class_logits(self, logits: torch.Tensor) -> torch.Tensor:
        """Return the logits (B, K) of the classes that are scored, for *logits* (B, O) of the outputs."""
        return self.class_outputs.class_logits(logits) if self.class_outputs else logits

    @property
    def identity(self) -> JsonObject:
        """Return everything that determines the logits, and the classes scored, as plain JSON."""
        return {
            "architecture": self.architecture,
            "weights_sha256": self.weights_sha256,
            "mean": list(self.mean),
            "std": list(self.std),
            "num_classes": self.num_classes,
            "outputs": None if self.outputs is None else list(self.outputs),
            **({"class_outputs": self.class_outputs.identity} if self.class_outputs else {}),
            **({"code": self.code} if self.code else {}),
        }
