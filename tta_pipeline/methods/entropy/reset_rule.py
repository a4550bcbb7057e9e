"""A rule that decides when a method resets itself; it is called before each update and after each step."""

from abc import ABC, abstractmethod
from collections.abc import Callable

import torch
from torch import nn

from tta_pipeline.methods.entropy.entries import EntropyHyperparameters
from tta_pipeline.methods.stateful import Stateful


class ResetRule(Stateful, ABC):
    """Calls *start_over*, which restores the whole state of the method, including this rule, when a reset is due.

    Args:
        start_over: Restores the method's state.
        model: The model, whose parameters to adapt need gradients.
        forward: Returns logits (B, K) of images, float (B, 3, H, W), by the model that is passed, and counts them.
        num_classes: Number of classes, K.
        settings: Hyperparameters of the rule.
    """

    def __init__(
        self,
        start_over: Callable[[], None],
        *,
        model: nn.Module,  # noqa: ARG002 - for rules that need it
        forward: Callable[..., torch.Tensor],  # noqa: ARG002
        num_classes: int,  # noqa: ARG002
        settings: EntropyHyperparameters,
    ) -> None:
        self._start_over = start_over
        self._settings = settings

    def before_update(self) -> None:
        """Read or change the gradients just before an update."""

    @abstractmethod
    def after_step(self, images: torch.Tensor, logits: torch.Tensor) -> None:
        """Start over if a reset is due, after a step on *images*, predicted as *logits* (B, K) before the update."""
