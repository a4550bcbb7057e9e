"""RDumb: ETA that resets itself every thousand steps.

Press et al. 2023, "RDumb: A simple approach that questions our progress in continual test-time adaptation": model,
optimiser and ETA's memory return to the source model every T = 1000 steps, including steps without a sample to
adapt on.
"""

from typing import Any

import torch
from torch import nn

from tta_pipeline.adaptation.catalogue import RdumbHyperparameters
from tta_pipeline.adaptation.eta import Eta


class Rdumb(Eta):
    """Adapts as ETA and resets at regular intervals."""

    name = "rdumb"
    keeps = ("_num_steps",)

    def __init__(self, model: nn.Module, hyperparameters: RdumbHyperparameters, **kwargs: Any) -> None:
        super().__init__(model, hyperparameters, **kwargs)
        self._reset_every = hyperparameters.reset_every
        self._num_steps = 0

    def _adapt(self, images: torch.Tensor) -> torch.Tensor:
        logits = super()._adapt(images)
        self._num_steps += 1
        if self._num_steps == self._reset_every:
            self._start_over()
        return logits
