"""When a method starts over: a rule that is asked after each step, and may act on gradients before it.

RDumb's rule is Press et al. 2023, "RDumb: A simple approach that questions our progress in continual test-time
adaptation": model, optimiser and memory return to the source model every T = 1000 steps.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable

import torch

from tta_pipeline.methods.snapshot import Keeper


class ResetRule(Keeper, ABC):
    """Calls *start_over*, which restores all that the method keeps, this rule included."""

    def __init__(self, start_over: Callable[[], None]) -> None:
        self._start_over = start_over

    def before_update(self) -> None:
        """See, or change, the gradients of the update that follows."""

    @abstractmethod
    def after_step(self, images: torch.Tensor, logits: torch.Tensor) -> None:
        """Start over if it is time, after a step on *images*, predicted as *logits* (B, K) before the update."""


class PeriodicReset(ResetRule):
    """Starts over every so many steps, those without a sample to adapt on included."""

    keeps = ("_num_steps",)

    def __init__(self, start_over: Callable[[], None], *, every: int) -> None:
        super().__init__(start_over)
        self._every = every
        self._num_steps = 0

    def after_step(self, images: torch.Tensor, logits: torch.Tensor) -> None:  # noqa: ARG002 - it only counts
        """Count the step, and start over if it is the last of the period."""
        self._num_steps += 1
        if self._num_steps == self._every:
            self._start_over()
