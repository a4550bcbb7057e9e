"""What every method is: predictions for a stream of batches, counters, and a way back to the source model."""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from copy import deepcopy
from typing import Any

import torch
from torch import nn

from tta_pipeline.adaptation.catalogue import GradientHyperparameters, Hyperparameters


class Method(ABC):
    """A model that may change while it predicts.

    Counters are of samples and run on over resets: `num_forwards`, `num_backwards`; and of events: `num_updates`,
    `num_resets`, `num_nonfinite_batches`.
    """

    def __init__(
        self,
        model: nn.Module,
        hyperparameters: Hyperparameters,
        *,
        num_classes: int,
        source_data: Iterable[torch.Tensor] | None = None,
    ) -> None:
        self.model = model
        self.hyperparameters = hyperparameters
        self.num_classes = num_classes
        self.source_data = source_data
        self.num_forwards = 0
        self.num_backwards = 0
        self.num_updates = 0
        self.num_resets = 0
        self.num_nonfinite_batches = 0

    def predict(self, images: torch.Tensor) -> torch.Tensor:
        """Return logits (B, K) for *images*, float (B, 3, H, W) in [0, 1], and adapt if the method does."""
        logits = self._predict(images)
        self.num_nonfinite_batches += int(not torch.isfinite(logits).all())
        return logits

    def reset(self) -> None:
        """Return to the source model: parameters, buffers and optimiser as they were after building."""
        self.num_resets += 1
        self._restore()

    @abstractmethod
    def _predict(self, images: torch.Tensor) -> torch.Tensor: ...

    def _restore(self) -> None:  # noqa: B027 - a method that keeps nothing has nothing to undo
        """Undo what predicting changed; nothing for a method that changes nothing."""

    def _forward(self, images: torch.Tensor) -> torch.Tensor:
        self.num_forwards += len(images)
        logits: torch.Tensor = self.model(images)
        return logits


class GradientMethod(Method):
    """A method that takes gradient steps on some of the model's parameters."""

    def __init__(
        self,
        model: nn.Module,
        hyperparameters: GradientHyperparameters,
        *,
        num_classes: int,
        source_data: Iterable[torch.Tensor] | None = None,
    ) -> None:
        super().__init__(model, hyperparameters, num_classes=num_classes, source_data=source_data)
        self._episodic = hyperparameters.episodic
        self._steps = hyperparameters.steps
        self._optimizer = _optimizer(self._select(model), hyperparameters)
        self._initial = deepcopy((model.state_dict(), self._optimizer.state_dict()))

    @abstractmethod
    def _select(self, model: nn.Module) -> list[nn.Parameter]:
        """Prepare *model* for adaptation and return the parameters to adapt."""

    @abstractmethod
    def _loss(self, images: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
        """Return the loss, a scalar, of *logits* for *images*."""

    def _predict(self, images: torch.Tensor) -> torch.Tensor:
        if self._episodic:
            self.reset()
        for _ in range(self._steps):
            with torch.enable_grad():
                logits = self._forward(images)
                self._step(self._loss(images, logits), num_samples=len(images))
        return logits.detach()

    def _step(self, loss: torch.Tensor, *, num_samples: int) -> None:
        loss.backward()  # type: ignore[no-untyped-call]
        self._optimizer.step()
        self._optimizer.zero_grad()
        self.num_backwards += num_samples
        self.num_updates += 1

    def _restore(self) -> None:
        model_state, optimizer_state = self._initial
        self.model.load_state_dict(model_state)
        self._optimizer.load_state_dict(deepcopy(optimizer_state))


def _optimizer(parameters: list[nn.Parameter], settings: GradientHyperparameters) -> torch.optim.Optimizer:
    options: dict[str, Any] = {"lr": settings.lr}
    if settings.optimizer == "adam":
        return torch.optim.Adam(parameters, betas=(settings.momentum, 0.999), **options)
    return torch.optim.SGD(parameters, momentum=settings.momentum, **options)
