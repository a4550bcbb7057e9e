"""SAR: sharpness-aware and reliable entropy minimisation.

Niu et al. 2023, "Towards stable test-time adaptation in dynamic wild world", algorithm 1:

- Only samples with entropy below E0 = e_margin * ln K are used.
- A first backward pass on their mean entropy moves the parameters from w to w + rho * g / ||g||. A second backward pass
  there, on the samples that are still below E0, gives the gradient of the step from w.
- If the moving average (0.9) of the second loss falls below `reset_margin`, the model has collapsed: model and average
  are reset.
- The top layers stay frozen (`top_layers`).

The authors' learning rate of 2.5e-4 is for a ResNet-50 and batches of 32 or more; for a ViT-B and batches of B it is
1e-3 * B / 64. The settings for CIFAR are from the benchmark of Doebler et al.

If no sample is below E0, no step is taken; in the authors' code, the momentum still moves the parameters. Their code
also keeps the average over a reset, so that several resets follow each other; the code of Doebler et al. does not.
"""

import math
from typing import Any

import torch
from torch import nn

from tta_pipeline.methods.affine_parameters import select_affine_parameters
from tta_pipeline.methods.entropy.entries import SarHyperparameters
from tta_pipeline.methods.entropy.entropy_method import EntropyMethod
from tta_pipeline.methods.entropy.sharpness_ascent import Ascent
from tta_pipeline.methods.top_layers import top_layers


class Sar(EntropyMethod):
    """Minimises the entropy of reliable samples over the norm layers below the top, towards flat minima."""

    name = "sar"
    state_attrs = ("_mean_entropy",)

    def __init__(self, model: nn.Module, hyperparameters: SarHyperparameters, **kwargs: Any) -> None:
        self._named = hyperparameters.frozen_layers
        super().__init__(model, hyperparameters, **kwargs)
        adapted = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        self._ascent = Ascent(adapted, rho=hyperparameters.rho)
        self._e0 = hyperparameters.e_margin * math.log(self.num_classes)
        self._reset_margin = hyperparameters.reset_margin
        self._mean_entropy: float | None = None

    def _norm_parameters(self, model: nn.Module) -> list[nn.Parameter]:
        self.frozen_layers = top_layers(model, self.name, named=self._named)
        return select_affine_parameters(model, self.name, frozen=self.frozen_layers)

    def _adapt(self, images: torch.Tensor) -> torch.Tensor:
        logits = self._forward(images)
        # The host waits for the device, here and below: the steps depend on the indices.
        reliable = self._reliable(logits)
        if len(reliable):
            self._backward(self._loss(logits[reliable]), num_samples=len(images), num_adapted=len(reliable))
            self._ascent.climb()
            self._step_from_above(images, reliable)
        return logits

    def _step_from_above(self, images: torch.Tensor, reliable: torch.Tensor) -> None:
        logits = self._forward(images)[reliable]
        kept = self._reliable(logits)
        if not len(kept):
            self._ascent.restore()
            return
        self._backward(self._loss(logits[kept]), num_samples=len(images), num_adapted=len(kept))
        self._ascent.restore()
        self._update()
        self._notice_collapse(float(self._entropies(logits[kept].detach()).mean()))

    def _reliable(self, logits: torch.Tensor) -> torch.Tensor:
        return (self._entropies(logits.detach()) < self._e0).nonzero().squeeze(1)

    def _notice_collapse(self, mean_entropy: float) -> None:
        previous = self._mean_entropy
        self._mean_entropy = mean_entropy if previous is None else 0.9 * previous + 0.1 * mean_entropy
        if self._mean_entropy < self._reset_margin:
            self._start_over()
