"""A cache of images for each class, which keeps those of lowest entropy, with fixed places on the device."""

import math

import torch


def make_entropies(num_classes: int, size: int, device: torch.device) -> torch.Tensor:
    """Return the entropies (K, M) of an empty cache: free places have infinite entropy, so that any image enters."""
    return torch.full((num_classes, size), math.inf, device=device)


def enter(
    entropies: torch.Tensor,
    label: torch.Tensor,
    uncertainty: torch.Tensor,
    *cached: tuple[torch.Tensor, torch.Tensor],
) -> None:
    """Replace the image of highest entropy in the class's cache if the new image has less; the host never waits.

    Args:
        entropies: Entropies of the images in the cache, (K, M).
        label: Class of the new image, a scalar.
        uncertainty: Entropy of the new image, a scalar.
        cached: Tensors (K, M, ...) of the cache, each with the image's value.
    """
    index = label.view(1)
    of_class = entropies.index_select(0, index).squeeze(0)
    is_replaced = (torch.arange(len(of_class), device=of_class.device) == of_class.argmax()) & (uncertainty < of_class)
    entropies.index_copy_(0, index, uncertainty.where(is_replaced, of_class).unsqueeze(0))
    for values, value in cached:
        rows = values.index_select(0, index).squeeze(0)
        values.index_copy_(0, index, value.where(is_replaced.unsqueeze(1), rows).unsqueeze(0))


def affinity(keys: torch.Tensor, entropies: torch.Tensor, feature: torch.Tensor, beta: float) -> torch.Tensor:
    """Return exp(-beta (1 - cosine)) of each cached image with *feature*, (K, M); 0 for free places."""
    return (-beta * (1 - keys @ feature)).exp().where(entropies.isfinite(), 0.0)
