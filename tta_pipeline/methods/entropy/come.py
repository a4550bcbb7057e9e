"""COME: the entropy of an opinion with explicit uncertainty, instead of the softmax's entropy.

Zhang et al. 2025, "COME: Test-time adaption by conservatively minimizing entropy". The logits z are read as the
evidence exp(z) of a Dirichlet distribution of strength S = sum_k (exp(z_k) + 1). Class k has the belief
b_k = exp(z_k) / S, and the uncertainty is u = K / S. The loss is the entropy of the opinion (b_1, ..., b_K, u). To keep
u near the source model's uncertainty, the length of z is a constant (p = 2, tau = 1): z / ||z|| times ||z|| without a
gradient, so that only the direction of z is learned.

This entropy replaces the softmax entropy in Tent, EATA and SAR. As in the authors' code, it also replaces the entropy
by which these methods choose and weight samples and detect a collapse; the thresholds remain the softmax's.
"""

import math

import torch

from tta_pipeline.methods.losses import entropy


def opinion_entropy(logits: torch.Tensor) -> torch.Tensor:
    """Return the entropy in nats of the opinion of each of *logits* (B, K), shape (B,); at most ln(K + 1)."""
    length = logits.norm(dim=1, keepdim=True).clamp(min=torch.finfo(logits.dtype).tiny)
    directed = logits * (length.detach() / length)
    # K is exp(ln K): belief and uncertainty are the softmax of K + 1 logits.
    uncertainty = torch.full_like(directed[:, :1], math.log(logits.shape[1]))
    return entropy(torch.cat([directed, uncertainty], 1))
