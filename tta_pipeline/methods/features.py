"""Features of a classifier: the input of its last linear layer."""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import nn

from tta_pipeline.errors import AdaptationError

_DISTILLATION_HEAD = "head_dist"
"""Name of the second classifier in the distilled DeiT of timm and of its authors."""


@dataclass(frozen=True, kw_only=True)
class ViewsRead:
    """What decides the views of a stream's images, other than the images."""

    num_views: int
    """Number of views of each image."""
    draws_sha256: str
    """Hash of the state of the generator that draws them."""
    code: str
    """`<module>:<name>` of the code that draws them."""


def find_classifier(model: nn.Module, *, num_classes: int, method: str) -> nn.Linear:
    """Return the last linear layer of *model* with *num_classes* outputs.

    Raises:
        AdaptationError: *model* has no such layer, or has a second classifier, as the distilled DeiT of timm does.
    """
    named = {
        name: layer
        for name, layer in model.named_modules()
        if isinstance(layer, nn.Linear) and layer.out_features == num_classes
    }
    layers = list(named.values())
    if not layers:
        raise AdaptationError(
            f"{type(model).__name__} has no linear layer with {num_classes} outputs; {method} expects one, and uses "
            "its input as the features: use another model"
        )
    if _DISTILLATION_HEAD in (name.rpartition(".")[2] for name in named):
        raise AdaptationError(
            f"{type(model).__name__} has a second classifier, {_DISTILLATION_HEAD}, and returns the mean of both; "
            f"{method} expects a single classifier, whose input it uses as the features: use a model without a "
            "distillation token"
        )
    return layers[-1]


@torch.no_grad()
def class_moments(
    model: nn.Module,
    layer: nn.Linear,
    features: "Features",
    source: Iterable[tuple[torch.Tensor, torch.Tensor]],
    *,
    method: str,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return mean and variance of the *features* of each class, both (K, D), over the images of *source*.

    The variance of a class with one image is 0.

    Raises:
        AdaptationError: a class has no source image.
    """
    device, (num_classes, num_features) = layer.weight.device, layer.weight.shape
    total, squares = (torch.zeros(num_classes, num_features, device=device) for _ in range(2))
    count = torch.zeros(num_classes, device=device)
    origin: torch.Tensor | None = None  # squares of distances from it are exact enough in float32
    for images, labels in source:
        model(images.to(device))
        rows, places = features.take().float(), labels.to(device)
        origin = rows.mean(0) if origin is None else origin
        total.index_add_(0, places, rows)
        squares.index_add_(0, places, (rows - origin) ** 2)
        count += places.bincount(minlength=num_classes)
    missing = (count == 0).nonzero().flatten().tolist()
    if missing or origin is None:
        raise AdaptationError(
            f"source_data has no images for {len(missing)} of {num_classes} classes, such as class {missing[0]}; "
            f"{method} expects some images of each class for its prototypes: use more of the clean split"
        )
    mean = total / count.unsqueeze(1)
    variance = (squares - count.unsqueeze(1) * (mean - origin) ** 2) / (count - 1).clamp(min=1).unsqueeze(1)
    return mean, variance.clamp(min=0)


class Features:
    """Keeps the input of *layer* from the latest forward pass, (B, D), until `take` returns it."""

    def __init__(self, layer: nn.Linear) -> None:
        self._latest: torch.Tensor | None = None
        # The hook is permanent, since compiled code ignores hooks added later.
        layer.register_forward_pre_hook(self._keep)

    def take(self) -> torch.Tensor:
        """Return the features of the latest forward pass, (B, D), and release them."""
        assert self._latest is not None, "no forward pass since the last call"
        latest, self._latest = self._latest, None
        return latest

    def _keep(self, _: nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
        self._latest = inputs[0]
