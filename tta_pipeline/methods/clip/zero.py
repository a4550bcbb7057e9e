"""ZERO: the most certain views of an image vote for its class.

Farina et al. 2024, "Frustratingly easy test-time adaptation of vision-language models", algorithm 1. The views, an
image and random crops of it, are predicted, and the views of lowest entropy are kept. At temperature zero, each kept
view has one vote, and the class with most votes wins. If several classes are tied, the other views decide: the most
certain one that votes for a tied class.
"""

from typing import Any

import torch
from torch import nn

from tta_pipeline.methods.clip.crop_method import CropMethod, count_kept
from tta_pipeline.methods.clip.entries import ZeroHyperparameters
from tta_pipeline.methods.losses import entropy


class Zero(CropMethod):
    """Predicts by a vote of the most certain views; the logits are logarithms of the shares of votes."""

    name = "zero"

    def __init__(self, model: nn.Module, hyperparameters: ZeroHyperparameters, **kwargs: Any) -> None:
        super().__init__(model, hyperparameters, **kwargs)
        self._num_kept = count_kept(hyperparameters.num_views, hyperparameters.kept_share)

    def _predict_views(self, logits: torch.Tensor, features: torch.Tensor) -> torch.Tensor:  # noqa: ARG002
        return torch.stack([self._vote(of_image) for of_image in logits])

    def _vote(self, logits: torch.Tensor) -> torch.Tensor:
        """Return the logarithms (K,) of the classes' shares of votes, from the *logits* (V, K) of the views."""
        logits = logits[entropy(logits).argsort(stable=True)]
        kept, others = logits.argmax(1).tensor_split((self._num_kept,))
        votes = logits.new_zeros(logits.shape[1])
        votes.index_add_(0, kept, torch.ones_like(kept, dtype=votes.dtype))
        is_tied = votes == votes.max()
        winner = _break_tie(is_tied, logits[self._num_kept :], others)
        votes.index_add_(0, winner, (is_tied.sum(0, keepdim=True) > 1).to(votes.dtype))
        shares = (votes / votes.sum()).clamp(min=torch.finfo(votes.dtype).eps)
        return shares.log().where(logits.isfinite().all(), torch.nan)  # a vote would hide it


def _break_tie(is_tied: torch.Tensor, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return the label, as (1,), of the first view whose label is tied; *is_tied* (K,) marks the tied classes.

    If no view has such a label, return the tied class that the first view finds most probable. The host never waits.
    """
    if not len(labels):
        return is_tied.float().argmax(0, keepdim=True)
    decides = is_tied[labels]
    first = labels[decides.float().argmax(0, keepdim=True)]  # of equals, the first
    likeliest = logits[0].where(is_tied, -torch.inf).argmax(0, keepdim=True)
    return first.where(decides.any(), likeliest)
