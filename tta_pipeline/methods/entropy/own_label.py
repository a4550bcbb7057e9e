"""RPL's loss as a piece: the generalised cross entropy of the predicted label with q = 0.8.

Rusak et al. 2022, "If your data distribution shifts, use self-learning", section 3.
"""

import torch

from tta_pipeline.methods.losses import generalized_cross_entropy


def own_label_cross_entropy(logits: torch.Tensor) -> torch.Tensor:
    """Return the loss of each of *logits* (B, K), shape (B,)."""
    return generalized_cross_entropy(logits, logits.argmax(1), q=0.8)
