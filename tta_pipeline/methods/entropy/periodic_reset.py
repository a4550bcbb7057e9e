"""The rule of RDumb: model, optimiser and memory return to the source model every T = 1000 steps.

Press et al. 2023, "RDumb: A simple approach that questions our progress in continual test-time adaptation".
"""

from typing import Any

import torch

from tta_pipeline.methods.entropy.reset_rule import ResetRule


class PeriodicReset(ResetRule):
    """Starts over every `reset_every` steps; a step without a sample to adapt on counts too."""

    state_attrs = ("_num_steps",)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._num_steps = 0

    def after_step(self, images: torch.Tensor, logits: torch.Tensor) -> None:  # noqa: ARG002 - it only counts
        """Count the step, and start over if it is the last of the period."""
        self._num_steps += 1
        if self._num_steps == self._settings.reset_every:
            self._start_over()
