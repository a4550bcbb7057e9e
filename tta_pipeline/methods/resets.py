"""Rules that decide when a method resets itself; a rule is called before each update and after each step.

The rule of RDumb is from Press et al. 2023, "RDumb: A simple approach that questions our progress in continual
test-time adaptation": model, optimiser and memory return to the source model every T = 1000 steps.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable

import torch

from tta_pipeline.methods.stateful import Stateful


class ResetRule(Stateful, ABC):
    """Calls *start_over*, which restores the whole state of the method, including this rule, when it is time."""

    def __init__(self, start_over: Callable[[], None]) -> None:
        self._start_over = start_over

    def before_update(self) -> None:
        """Read or change the gradients just before an update."""

    @abstractmethod
    def after_step(self, images: torch.Tensor, logits: torch.Tensor) -> None:
        """Start over if it is time, after a step on *images*, predicted as *logits* (B, K) before the update."""


class PeriodicReset(ResetRule):
    """Starts over every *every* steps; a step without a sample to adapt on counts too."""

    state_attrs = ("_num_steps",)

    def __init__(self, start_over: Callable[[], None], *, every: int) -> None:
        super().__init__(start_over)
        self._every = every
        self._num_steps = 0

    def after_step(self, images: torch.Tensor, logits: torch.Tensor) -> None:  # noqa: ARG002 - it only counts
        """Count the step, and start over if it is the last of the period."""
        self._num_steps += 1
        if self._num_steps == self._every:
            self._start_over()
