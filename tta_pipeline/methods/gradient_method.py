"""Methods that take gradient steps on some of the model's parameters.

A `GradientMethod` defines the loss (`_loss`), and the parameters (`_select`) unless it adapts all norm layers. A method
that adapts only on some samples selects them (`SelectiveMethod._reliable`). A method with another kind of step
overrides `_adapt` and uses `_forward` and `_step`, which count samples and updates. The prediction comes from the
forward pass before the update.
"""

from abc import abstractmethod
from typing import ClassVar

import torch
from torch import nn

from tta_pipeline.methods.affine_parameters import select_affine_parameters
from tta_pipeline.methods.entry import GradientHyperparameters
from tta_pipeline.methods.method import Method, SourceData
from tta_pipeline.methods.norm_layers import use_batch_statistics
from tta_pipeline.methods.stateful import StateDict


class GradientMethod(Method):
    """A method that takes gradient steps on some of the model's parameters."""

    state_attrs: ClassVar[tuple[str, ...]] = ("model", "_optimizer")

    def __init__(
        self,
        model: nn.Module,
        hyperparameters: GradientHyperparameters,
        *,
        num_classes: int,
        source_data: SourceData | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__(model, hyperparameters, num_classes=num_classes, source_data=source_data, seed=seed)
        self._episodic = hyperparameters.episodic
        self._steps = hyperparameters.steps
        self._optimizer = _make_optimizer(self._select(self.model), hyperparameters)

    def _select(self, model: nn.Module) -> list[nn.Parameter]:
        """Prepare *model* for adaptation, and return the parameters to adapt; freeze all others.

        The default is Tent's: batch statistics, and the affine parameters of all norm layers.
        """
        use_batch_statistics(model)
        return select_affine_parameters(model, self.name)

    def _loss(self, logits: torch.Tensor) -> torch.Tensor:
        """Return the loss, a scalar, of *logits* (B, K); a method that overrides `_adapt` need not define it."""
        raise NotImplementedError

    def _predict(self, images: torch.Tensor) -> torch.Tensor:
        if self._episodic:
            self._start_over()
        with torch.enable_grad():
            for _ in range(self._steps):
                logits = self._adapt(images)
                self._after_step(images, logits.detach())
        return logits.detach()

    def _adapt(self, images: torch.Tensor) -> torch.Tensor:
        """Take one step on *images*, and return their logits from before the update; gradients are enabled."""
        logits = self._forward(images)
        self._step(self._loss(logits), num_samples=len(images))
        return logits

    def _after_step(self, images: torch.Tensor, logits: torch.Tensor) -> None:
        """Called after each step, with the *logits* (B, K) of *images* from before it; a hook that does nothing."""

    def _step(self, loss: torch.Tensor, *, num_samples: int, num_adapted: int | None = None) -> None:
        """Take a step on *loss*, which *num_adapted* (None: all) of the *num_samples* of a forward pass entered."""
        self._backward(loss, num_samples=num_samples, num_adapted=num_adapted)
        self._update()

    def _backward(self, loss: torch.Tensor, *, num_samples: int, num_adapted: int | None = None) -> None:
        loss.backward()  # type: ignore[no-untyped-call]
        self.num_backwards += num_samples
        self.num_adapted_samples += num_samples if num_adapted is None else num_adapted

    def _update(self) -> None:
        self._optimizer.step()
        self._optimizer.zero_grad()
        self.num_updates += 1


class SelectiveMethod(GradientMethod):
    """A gradient method that adapts on selected samples of each batch, and takes no step if none is selected."""

    @abstractmethod
    def _reliable(self, logits: torch.Tensor) -> torch.Tensor:
        """Return the indices, int64 (M,) with M <= B, of the samples to adapt on, given their *logits* (B, K)."""

    def _adapt(self, images: torch.Tensor) -> torch.Tensor:
        logits = self._forward(images)
        # The host waits for the indices: the step, including momentum, and the counters depend on them.
        kept = self._reliable(logits.detach())
        if len(kept):
            self._step(self._loss(logits[kept]), num_samples=len(images), num_adapted=len(kept))
        return logits


def _make_optimizer(parameters: list[nn.Parameter], settings: GradientHyperparameters) -> torch.optim.Optimizer:
    options: StateDict = {"lr": settings.lr, "weight_decay": settings.weight_decay}
    if settings.optimizer in {"adam", "adamw"}:
        kind = torch.optim.Adam if settings.optimizer == "adam" else torch.optim.AdamW
        return kind(parameters, betas=(settings.momentum, 0.999), **options)
    return torch.optim.SGD(parameters, momentum=settings.momentum, nesterov=settings.nesterov, **options)
