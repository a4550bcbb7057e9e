"""Entropy minimisation from parts that a benchmark file combines: a loss, the parameters to adapt, a rule for resets.

A method built on it adds its own choice of samples, or its own kind of step.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, ClassVar

import torch
from torch import nn

from tta_pipeline.methods.added_parameters import add_adapters, add_low_rank_updates
from tta_pipeline.methods.asr import AdaptiveReset
from tta_pipeline.methods.catalogue import EntropyHyperparameters
from tta_pipeline.methods.come import opinion_entropy
from tta_pipeline.methods.ema import frozen_copy
from tta_pipeline.methods.features import find_classifier
from tta_pipeline.methods.losses import entropy, generalized_cross_entropy
from tta_pipeline.methods.method import GradientMethod
from tta_pipeline.methods.norm_layers import use_batch_statistics
from tta_pipeline.methods.resets import PeriodicReset, ResetRule
from tta_pipeline.methods.selection import select_affine_parameters


def _own_label(logits: torch.Tensor) -> torch.Tensor:
    return generalized_cross_entropy(logits, logits.argmax(1), q=0.8)


LOSSES: Mapping[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "entropy": entropy,
    "come": opinion_entropy,
    "gce": _own_label,
}
"""Losses by the name in `EntropyHyperparameters`: from logits (B, K), one for each sample, (B,)."""
ENTROPIES: Mapping[str, Callable[[torch.Tensor], torch.Tensor]] = {**LOSSES, "gce": entropy}
"""By the same names: the entropy in nats by which samples are chosen and weighted, and a collapse is noticed."""


class EntropyMethod(GradientMethod):
    """A gradient method whose loss, parameters and rule for resets are choices."""

    state_attrs: ClassVar[tuple[str, ...]] = ("_reset_rule",)

    def __init__(self, model: nn.Module, hyperparameters: EntropyHyperparameters, **kwargs: Any) -> None:
        self._pieces = hyperparameters
        super().__init__(model, hyperparameters, **kwargs)
        self._losses, self._entropies = LOSSES[hyperparameters.loss], ENTROPIES[hyperparameters.loss]
        self._reset_rule = self._rule(hyperparameters)

    def _select(self, model: nn.Module) -> list[nn.Parameter]:
        use_batch_statistics(model)
        pieces = self._pieces
        if pieces.params == "norm":
            return self._norm_parameters(model)
        model.requires_grad_(pieces.params == "all")
        match pieces.params:
            case "last":
                last = find_classifier(model, num_classes=self.num_classes, method=f"{self.name}, params last")
                last.requires_grad_(True)
            case "lora":
                add_low_rank_updates(
                    model, num_classes=self.num_classes, rank=pieces.lora_rank, seed=self.seed, method=self.name
                )
            case "adapters":
                add_adapters(model, size=pieces.adapter_size, seed=self.seed, method=self.name)
        return [parameter for parameter in model.parameters() if parameter.requires_grad]

    def _norm_parameters(self, model: nn.Module) -> list[nn.Parameter]:
        """Freeze *model* except the norm layers that adapt, and return their parameters."""
        return select_affine_parameters(model, self.name)

    def _rule(self, hyperparameters: EntropyHyperparameters) -> ResetRule | None:
        match hyperparameters.reset:
            case "periodic":
                return PeriodicReset(self._start_over, every=hyperparameters.reset_every)
            case "asr":
                return AdaptiveReset(
                    self._start_over,
                    [parameter for parameter in self.model.parameters() if parameter.requires_grad],
                    predict_by_source=partial(self._forward, model=frozen_copy(self.model)),
                    num_classes=self.num_classes,
                    settings=hyperparameters,
                )
            case _:
                return None

    def _loss(self, logits: torch.Tensor) -> torch.Tensor:
        return self._losses(logits).mean()

    def _after_step(self, images: torch.Tensor, logits: torch.Tensor) -> None:
        if self._reset_rule is not None:
            self._reset_rule.after_step(images, logits)

    def _update(self) -> None:
        if self._reset_rule is not None:
            self._reset_rule.before_update()
        super()._update()
