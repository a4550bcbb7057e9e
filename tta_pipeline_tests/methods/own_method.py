"""Methods outside the package, as a user would write them: the declaration of each, followed by its code."""

from dataclasses import replace
from typing import Any

import torch
from pydantic import Field

from tta_pipeline.methods.batch_norm.source import Source
from tta_pipeline.methods.entry import Hyperparameters, MethodEntry
from tta_pipeline.methods.method import Method


class LastClassHyperparameters(Hyperparameters):
    """Hyperparameters of the method."""

    certainty: float = Field(default=1.0, gt=0)
    """Logit of the last class."""


LAST_CLASS = MethodEntry(
    implementation="tta_pipeline_tests.methods.own_method:LastClass",
    summary="Always the last class.",
    presets=dict.fromkeys(["imagenet", "cifar"], LastClassHyperparameters()),
)
HEAVY_LAST_CLASS = replace(LAST_CLASS, passes=10)


class LastClass(Method):
    """Predicts the last class without looking at the images."""

    name = "last_class"

    def __init__(self, model: torch.nn.Module, hyperparameters: LastClassHyperparameters, **kwargs: Any) -> None:
        super().__init__(model, hyperparameters, **kwargs)
        self._certainty = hyperparameters.certainty

    def _predict(self, images: torch.Tensor) -> torch.Tensor:
        logits = torch.zeros(len(images), self.num_classes, device=self.device)
        logits[:, -1] = self._certainty
        return logits


MIRRORED = MethodEntry(
    implementation="tta_pipeline_tests.methods.own_method:Mirrored",
    summary="Source on mirrored images.",
    presets=dict.fromkeys(["imagenet", "cifar"], Hyperparameters()),
)


class Mirrored(Source):
    """Inherits the declaration that it reads only features, although it reads images."""

    def _predict(self, images: torch.Tensor) -> torch.Tensor:
        return super()._predict(images.flip(-1))
