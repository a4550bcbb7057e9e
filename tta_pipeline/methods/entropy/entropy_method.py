"""Entropy minimisation from parts that a benchmark file combines: a loss, the parameters to adapt, a rule for resets.

A method built on it adds its own choice of samples, or its own kind of step. A part that is not the default is imported
by name (`EntropyHyperparameters.code_of_choices`), so that its code affects only results that use it.
"""

from typing import Any, ClassVar

import torch
from torch import nn

from tta_pipeline.methods.affine_parameters import select_affine_parameters
from tta_pipeline.methods.entropy.entries import EntropyHyperparameters
from tta_pipeline.methods.entropy.reset_rule import ResetRule
from tta_pipeline.methods.gradient_method import GradientMethod
from tta_pipeline.methods.losses import entropy
from tta_pipeline.methods.norm_layers import use_batch_statistics


class EntropyMethod(GradientMethod):
    """A gradient method whose loss, parameters and rule for resets are choices."""

    state_attrs: ClassVar[tuple[str, ...]] = ("_reset_rule",)

    def __init__(self, model: nn.Module, hyperparameters: EntropyHyperparameters, **kwargs: Any) -> None:
        self._pieces = hyperparameters
        super().__init__(model, hyperparameters, **kwargs)
        self._losses = hyperparameters.import_choice("loss") or entropy
        """From logits (B, K), a loss for each sample, (B,)."""
        self._entropies = self._losses if hyperparameters.loss == "come" else entropy
        """Entropies in nats by which samples are chosen and weighted, and a collapse is detected."""
        self._reset_rule = self._make_reset_rule()

    def _select(self, model: nn.Module) -> list[nn.Parameter]:
        use_batch_statistics(model)
        pieces = self._pieces
        if pieces.params == "norm":
            return self._norm_parameters(model)
        model.requires_grad_(pieces.params == "all")
        if (unfreeze := pieces.import_choice("params")) is not None:
            unfreeze(model, pieces, num_classes=self.num_classes, seed=self.seed, method=self.name)
        return [parameter for parameter in model.parameters() if parameter.requires_grad]

    def _norm_parameters(self, model: nn.Module) -> list[nn.Parameter]:
        """Freeze *model* except the norm layers that adapt, and return their parameters."""
        return select_affine_parameters(model, self.name)

    def _make_reset_rule(self) -> ResetRule | None:
        kind: type[ResetRule] | None = self._pieces.import_choice("reset")
        if kind is None:
            return None
        return kind(
            self._start_over,
            model=self.model,
            forward=self._forward,
            num_classes=self.num_classes,
            settings=self._pieces,
        )

    def _loss(self, logits: torch.Tensor) -> torch.Tensor:
        return self._losses(logits).mean()

    def _after_step(self, images: torch.Tensor, logits: torch.Tensor) -> None:
        if self._reset_rule is not None:
            self._reset_rule.after_step(images, logits)

    def _update(self) -> None:
        if self._reset_rule is not None:
            self._reset_rule.before_update()
        super()._update()
