"""EATA: ETA with a penalty on forgetting.

Niu et al. 2022, "Efficient test-time model adaptation without forgetting", on Fisher regularisation. The loss is ETA's
plus fisher_alpha * sum over parameters of F * (theta - theta_0)^2, where F is the diagonal Fisher information of the
source model on `fisher_size` clean samples, with batch statistics. Without source data there is no F, and the method
would be ETA, as the authors call it, so source data are required. The constants for ImageNet are the authors';
fisher_alpha for CIFAR is from the benchmark of Doebler et al.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.utils import parameters_to_vector

from tta_pipeline.methods.entropy.entries import EataHyperparameters
from tta_pipeline.methods.entropy.eta import Eta


class Eata(Eta):
    """ETA with a penalty on changes of the parameters that matter to the source model's predictions."""

    name = "eata"

    def __init__(self, model: nn.Module, hyperparameters: EataHyperparameters, **kwargs: Any) -> None:
        super().__init__(model, hyperparameters, **kwargs)
        self._parameters = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        self._source = parameters_to_vector(self._parameters).detach()
        clean = self._require_source_data("the penalty on forgetting, without which it is the method eta")
        fisher = _diagonal_fisher(self.model, self._parameters, self._first_images(clean, hyperparameters.fisher_size))
        self._importance = hyperparameters.fisher_alpha * fisher

    def _loss(self, logits: torch.Tensor) -> torch.Tensor:
        moved = parameters_to_vector(self._parameters) - self._source
        return super()._loss(logits) + (self._importance * moved**2).sum()


def _diagonal_fisher(
    model: nn.Module, parameters: Sequence[nn.Parameter], batches: Iterable[torch.Tensor]
) -> torch.Tensor:
    """Return the mean over *batches* of the squared gradient of the cross entropy with the predicted label.

    It measures how much each parameter matters to the model's own predictions. As in the authors' code, each gradient
    is a batch's mean loss's, not a single sample's.

    Returns:
        The values for all *parameters*, flattened and concatenated, (P,).
    """
    fisher = torch.zeros_like(parameters_to_vector(parameters))
    num_batches = 0
    for images in batches:
        logits = model(images)
        gradients = torch.autograd.grad(cross_entropy(logits, logits.argmax(1)), parameters)
        fisher += torch.cat([gradient.flatten() for gradient in gradients]) ** 2
        num_batches += 1
    return fisher / num_batches
