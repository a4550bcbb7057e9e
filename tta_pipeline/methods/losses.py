"""Entropies and cross entropies over classes, from logits."""

import torch


def entropy(logits: torch.Tensor) -> torch.Tensor:
    """Return the entropy in nats of the softmax of *logits* (B, K), shape (B,)."""
    log_probabilities = logits.log_softmax(1)
    return -(log_probabilities.exp() * log_probabilities).sum(1)


def marginal_entropy(logits: torch.Tensor) -> torch.Tensor:
    """Return the entropy, in nats, of the mean probabilities of *logits* (N, K), a scalar."""
    total = logits.log_softmax(1).logsumexp(0, keepdim=True)  # logits of the mean, up to a constant
    return entropy(total).sum()


def soft_cross_entropy(logits: torch.Tensor, target_logits: torch.Tensor) -> torch.Tensor:
    """Return -sum_k t_k log p_k, shape (B,), with p and t the softmax of *logits* and *target_logits*, both (B, K)."""
    return -(target_logits.softmax(1) * logits.log_softmax(1)).sum(1)


def symmetric_cross_entropy(logits: torch.Tensor, target_logits: torch.Tensor) -> torch.Tensor:
    """Return the mean of both directions of the soft cross entropy, shape (B,).

    Doebler et al. 2023, "Robust mean teacher for continual and gradual test-time adaptation", section 3.
    """
    return (soft_cross_entropy(logits, target_logits) + soft_cross_entropy(target_logits, logits)) / 2


def generalized_cross_entropy(logits: torch.Tensor, labels: torch.Tensor, *, q: float) -> torch.Tensor:
    """Return (1 - p^q) / q, shape (B,), with p the probability that *logits* (B, K) give to *labels*, int64 (B,).

    The loss L_q of Zhang and Sabuncu 2018, "Generalized cross entropy loss for training deep neural networks with noisy
    labels".
    """
    probabilities = logits.softmax(1).gather(1, labels[:, None]).squeeze(1)
    return (1 - probabilities**q) / q
