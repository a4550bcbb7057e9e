"""The methods by name, with their hyperparameters: everything a benchmark file needs to know, and no torch.

A new method is a file beside this one and an entry in `METHODS`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import Field

from tta_pipeline.sections import Section


class Hyperparameters(Section):
    """What a method can be told; a method without hyperparameters uses this class itself."""


class GradientHyperparameters(Hyperparameters):
    """What every method with a gradient step can be told."""

    lr: float = Field(gt=0, allow_inf_nan=False)
    """Learning rate."""
    optimizer: Literal["sgd", "adam"] = "sgd"
    """SGD without Nesterov momentum, or Adam."""
    momentum: float = Field(default=0.9, ge=0, lt=1)
    """Momentum of SGD, first beta of Adam."""
    steps: int = Field(default=1, ge=1)
    """Updates for each batch."""
    episodic: bool = False
    """Reset before every batch."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MethodEntry:
    """One method: where its code is and what its authors use on which benchmark."""

    implementation: str
    """`<module>:<class>`, imported only when an evaluation starts."""
    summary: str
    """One sentence for people."""
    presets: Mapping[str, Hyperparameters]
    """The authors' settings by benchmark family."""

    def configure(self, preset: str, changes: Mapping[str, Any]) -> Hyperparameters:
        """Return the preset's hyperparameters with *changes* made and validated.

        Raises:
            pydantic.ValidationError: a change names no hyperparameter, or its value is out of range.
        """
        defaults = self.presets[preset]
        return type(defaults).model_validate({**defaults.model_dump(), **changes})


PRESETS = ("imagenet", "cifar")
_NOTHING_TO_SET = dict.fromkeys(PRESETS, Hyperparameters())

METHODS: Mapping[str, MethodEntry] = {
    "source": MethodEntry(
        implementation="tta_pipeline.adaptation.source:Source",
        summary="The source model as it is, without adaptation.",
        presets=_NOTHING_TO_SET,
    ),
    "norm": MethodEntry(
        implementation="tta_pipeline.adaptation.norm:Norm",
        summary="Batch norm with the statistics of the current batch (BN-1).",
        presets=_NOTHING_TO_SET,
    ),
    "tent": MethodEntry(
        implementation="tta_pipeline.adaptation.tent:Tent",
        summary="Entropy minimisation over the affine parameters of the norm layers.",
        presets={
            "imagenet": GradientHyperparameters(lr=2.5e-4),
            "cifar": GradientHyperparameters(lr=1e-3, optimizer="adam"),
        },
    ),
}
