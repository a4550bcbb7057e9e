"""Methods and a network that a user got wrong, each in another way."""

import torch
from torch import nn

from tta_pipeline.methods.entry import PRESETS, Hyperparameters, MethodEntry
from tta_pipeline.methods.method import Method

_SETTINGS: dict[str, float] = {}


def entry_of(kind: str) -> MethodEntry:
    """Return the declaration of a method of this module."""
    presets = dict.fromkeys(PRESETS, Hyperparameters())
    return MethodEntry(implementation=f"{__name__}:{kind}", summary="Wrong.", presets=presets)


class FewClasses(Method):
    """Predicts too few classes, which is right for as long as no label is beyond them."""

    def _predict(self, images: torch.Tensor) -> torch.Tensor:
        return self._forward(images).detach()[:, :2]


class Labels(Method):
    """Predicts labels."""

    def _predict(self, images: torch.Tensor) -> torch.Tensor:
        return self._forward(images).argmax(1)


class Nothing(Method):
    """Forgets to return the logits."""

    def _predict(self, images: torch.Tensor) -> torch.Tensor:  # type: ignore[return]
        self._forward(images)


class Gradients(Method):
    """Forgets to detach the logits."""

    def _predict(self, images: torch.Tensor) -> torch.Tensor:
        return self._forward(images) * torch.ones((), requires_grad=True)


class Raises(Method):
    """Calls what raises."""

    def _predict(self, images: torch.Tensor) -> torch.Tensor:
        return self._forward(images) @ torch.zeros(7, 7)


class Unbuilt(Method):
    """Raises while it is built."""

    def __init__(self, model: nn.Module, hyperparameters: Hyperparameters, **kwargs: object) -> None:
        super().__init__(model, hyperparameters, **kwargs)  # type: ignore[arg-type]
        self.threshold = _SETTINGS["threshold"]

    def _predict(self, images: torch.Tensor) -> torch.Tensor:
        return self._forward(images)


class NotDerived:
    """Looks like a method to its author."""


class NotNumbers(Method):
    """Predicts no numbers, as a network that diverged does."""

    def _predict(self, images: torch.Tensor) -> torch.Tensor:
        return self._forward(images).detach() * float("nan")


FEW_CLASSES, LABELS, NOTHING, GRADIENTS = map(entry_of, ("FewClasses", "Labels", "Nothing", "Gradients"))
RAISES, UNBUILT, NOT_DERIVED, NOT_NUMBERS = map(entry_of, ("Raises", "Unbuilt", "NotDerived", "NotNumbers"))
