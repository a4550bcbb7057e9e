"""A classifier to evaluate, with everything that a result records about it."""

from collections.abc import Callable
from dataclasses import dataclass, field

from torch import nn

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

    def make(self) -> Normalized:
        """Return a fresh classifier of images in [0, 1]."""
        return Normalized(self.make_network(), mean=self.mean, std=self.std)

    @property
    def identity(self) -> JsonObject:
        """Return everything that determines the logits, as plain JSON."""
        return {
            "architecture": self.architecture,
            "weights_sha256": self.weights_sha256,
            "mean": list(self.mean),
            "std": list(self.std),
            "num_classes": self.num_classes,
            "outputs": None if self.outputs is None else list(self.outputs),
            **({"code": self.code} if self.code else {}),
        }
