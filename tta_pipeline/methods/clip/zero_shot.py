"""Zero-shot: the unchanged CLIP zero-shot classifier, the baseline of the methods for CLIP."""

from typing import Any

from torch import nn

from tta_pipeline.methods.batch_norm.source import Source
from tta_pipeline.methods.clip.two_towers import TwoTowers
from tta_pipeline.methods.entry import Hyperparameters


class ZeroShot(Source):
    """Predicts as `source` does, and raises an error if the model is no CLIP model."""

    name = "zero_shot"

    def __init__(self, model: nn.Module, hyperparameters: Hyperparameters, **kwargs: Any) -> None:
        super().__init__(model, hyperparameters, **kwargs)
        TwoTowers(model, self.name, num_classes=self.num_classes)
