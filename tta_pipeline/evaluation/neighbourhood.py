"""Soft neighbourhood density: how much alike a model's predictions are, by no label."""

import torch
from torch.nn import functional

_TEMPERATURE = 0.05
_MOST_SAMPLES = 5000
_ROWS = 512
"""Rows of the matrix of similarities that are computed together."""


def neighbourhood_density(probabilities: torch.Tensor) -> float | None:
    """Return the soft neighbourhood density of *probabilities*, (N, K), in nats; higher is denser.

    Saito et al. 2021, "Tune it the right way: unsupervised validation of domain adaptation via soft neighborhood
    density" (ICCV), section 3: each sample's cosine similarities to all others, divided by a temperature of 0.05,
    become a distribution by softmax, and the density is the mean entropy of these distributions. Of a larger cell,
    5,000 evenly spaced samples count.

    Returns:
        None if there are fewer than two samples or no classes, or a probability is not finite.
    """
    chosen = probabilities[:: -(-len(probabilities) // _MOST_SAMPLES) or 1]
    if len(chosen) < 2 or not chosen.shape[1] or not torch.isfinite(chosen).all():
        return None
    unit = functional.normalize(chosen, dim=1)
    total = 0.0
    for start in range(0, len(unit), _ROWS):
        similarities = unit[start : start + _ROWS] @ unit.T / _TEMPERATURE
        similarities.diagonal(start).fill_(-torch.inf)  # no sample is its own neighbour
        logarithms = similarities.log_softmax(1)
        total -= float((logarithms.exp() * logarithms.nan_to_num(neginf=0)).sum())
    return max(total / len(unit), 0.0)
