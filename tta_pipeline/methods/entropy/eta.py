"""ETA: entropy minimisation on reliable samples that are not redundant.

Niu et al. 2022, "Efficient test-time model adaptation without forgetting", on sample-efficient entropy minimisation.
The model adapts on a sample if its entropy H is below E0 = e_margin * ln K and its prediction is unlike earlier ones
(`DiverseSamples`). The loss is the mean over these samples of exp(E0 - H) * H, where the weight exp(E0 - H) has no
gradient. Parameters, statistics and the order of prediction and update are Tent's. The backward pass covers the whole
batch, as in the authors' code; `num_adapted_samples` counts the samples that the paper calls backwards. A reset also
forgets the earlier predictions.
"""

import math
from typing import Any, ClassVar

import torch
from torch import nn

from tta_pipeline.methods.entropy.diverse_samples import DiverseSamples
from tta_pipeline.methods.entropy.entries import EtaHyperparameters
from tta_pipeline.methods.entropy.entropy_method import EntropyMethod
from tta_pipeline.methods.gradient_method import SelectiveMethod


class Eta(EntropyMethod, SelectiveMethod):
    """Minimises the weighted entropy of chosen samples over the affine parameters of all norm layers."""

    name = "eta"
    state_attrs: ClassVar[tuple[str, ...]] = ("_seen",)

    def __init__(self, model: nn.Module, hyperparameters: EtaHyperparameters, **kwargs: Any) -> None:
        super().__init__(model, hyperparameters, **kwargs)
        self._e0 = hyperparameters.e_margin * math.log(self.num_classes)
        self._seen = DiverseSamples(num_classes=self.num_classes, d_margin=hyperparameters.d_margin, device=self.device)

    def _reliable(self, logits: torch.Tensor) -> torch.Tensor:
        return self._seen.choose(logits.softmax(1), self._entropies(logits) < self._e0)

    def _loss(self, logits: torch.Tensor) -> torch.Tensor:
        return (torch.exp(self._e0 - self._entropies(logits.detach())) * self._losses(logits)).mean()
