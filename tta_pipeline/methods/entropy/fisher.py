"""The diagonal of the Fisher information: how much each parameter matters to a model's own predictions."""

from collections.abc import Iterable, Sequence

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.utils import parameters_to_vector


def diagonal_fisher(
    model: nn.Module, parameters: Sequence[nn.Parameter], batches: Iterable[torch.Tensor]
) -> torch.Tensor:
    """Return the mean over *batches* of the squared gradient of the cross entropy with the predicted label.

    Niu et al. 2022, "Efficient test-time model adaptation without forgetting", on Fisher regularisation. As in
    the authors' code, each gradient is that of a batch's mean loss, not of a single sample's loss.

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
