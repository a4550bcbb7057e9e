"""ZOA: adapts norm layers by the slope of a loss between two forward passes, and stores what each domain taught.

Deng et al. 2025, "Test-time model adaptation for quantized neural networks", section 4, for networks that are not
quantised:

- Each batch is predicted once, and passes once more for each of `num_directions` random directions. The slope between
  both losses, divided by each perturbation, stands for the gradient (one-sided SPSA).
- The loss is the mean entropy plus lambda times FOA's discrepancy, as a mean over the activations of each layer.
- Domain knowledge: the adapted parameters are the source's, plus a mixture of the stored domains' differences from
  them, plus a remainder. Weights of the mixture and remainder adapt. When another domain begins, the present difference
  is stored as one more domain; the parameters stay the same at that moment. Beyond `max_domains`, the earlier one of
  the two most similar domains is dropped.

What the paper leaves open follows the authors' program (DengZeshuai/ZOA `48305fb`), without its quantisation:

- Weight and bias of norm layers adapt, but not those up to the first block, nor those at the top (`top_layers`), nor
  what a ResNet adds to its shortcuts: the last norm layer of a bottleneck and that of a downsampling.
- Activations are the class tokens as in FOA, or each stage of a ResNet averaged over positions, and the features.
- A perturbation has a random sign, and a size between a half and one times its scale. The remainder takes a step of
  gradient descent with weight decay. The mixture's weights take the first step of AdamW, whose size is its rate.
- A new domain enters with the weight of the largest, or more, if the remainder's mean size in a layer is above 0.01.
- A domain follows every pass of a batch (`domains`). When another domain begins, the mean feature starts over.
- Features shift as in FOA (`aligned_method`); the loss is that of the prediction before the shift.
"""

import re
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn.functional import normalize

from tta_pipeline.methods.affine_parameters import select_affine_parameters
from tta_pipeline.methods.augmentations import copy_to_device
from tta_pipeline.methods.domains import Domain, InputMoments
from tta_pipeline.methods.gradient_free.aligned_method import AlignedMethod
from tta_pipeline.methods.gradient_free.entries import ZoaHyperparameters
from tta_pipeline.methods.losses import entropy
from tta_pipeline.methods.norm_layers import NORM_LAYERS, use_batch_statistics
from tta_pipeline.methods.stateful import GrowingState
from tta_pipeline.methods.tokens import ClassTokens, Tokens, has_class_token
from tta_pipeline.methods.top_layers import top_layers

_SHARPNESS = 10.0
"""Factor of the mixture's weights before the softmax."""
_MIXTURE_DECAY = 0.1
_USUAL_SIZE = 0.01
_LARGEST_WEIGHT = 10.0
_STAGE = re.compile(r"(.*\.)?(layer|stages\.)\d")
_FIRST_OF_RESNET = re.compile(r"(.*\.)?layer1\.0")
_BEFORE_SHORTCUT = (".bn3", ".downsample.1")


class Zoa(AlignedMethod):
    """Adapts norm layers against slopes along random directions, as a mixture of domains and a remainder."""

    name = "zoa"
    state_attrs = ("_knowledge", "_domain")

    def __init__(self, model: nn.Module, hyperparameters: ZoaHyperparameters, **kwargs: Any) -> None:
        self._settings = hyperparameters
        use_batch_statistics(model)
        tokens = Tokens(model, self.name) if has_class_token(model) else None
        inner = ClassTokens(tokens.attentions[1:]).latest if tokens else _StageMeans(model).latest
        self.frozen_layers = _find_frozen(model, tokens, hyperparameters)
        self._parameters = select_affine_parameters(model, self.name, frozen=self.frozen_layers)
        self._first = (
            InputMoments(tokens.blocks[0], num_prefix=tokens.num_prefix) if tokens else InputMoments(_first_norm(model))
        )
        super().__init__(model, hyperparameters, inner=inner, **kwargs)
        self._shares = _shares([*(each.shape[1] for each in inner()), self._classifier.in_features], self.device)
        self._origin = torch.cat([each.detach().flatten() for each in self._parameters])
        self._knowledge = _Knowledge([each.numel() for each in self._parameters], self.device)
        self._domain = Domain(self.device)

    @torch.no_grad()
    def _predict(self, images: torch.Tensor) -> torch.Tensor:
        loss, features = self._pass(images, self._knowledge.difference())
        logits = self._classify_shifted(features)
        if len(images) >= self._settings.min_domain_batch:
            self._follow_domain()
        directions = [self._draw_direction() for _ in range(self._settings.num_directions)]
        slopes = [self._pass(images, self._knowledge.difference(each)).loss - loss for each in directions]
        self._knowledge.step(directions, slopes, self._settings)
        self._follow(features.mean(0))
        return logits

    def _pass(self, images: torch.Tensor, difference: torch.Tensor) -> "_Pass":
        """Return loss and features of *images* with parameters that differ from the source's by *difference* (P,)."""
        values = torch.split(self._origin + difference, [each.numel() for each in self._parameters])
        pairs = zip(values, self._parameters, strict=True)
        torch._foreach_copy_(list[torch.Tensor](self._parameters), [value.view_as(each) for value, each in pairs])
        logits = self._forward(images)
        activations = self._activations()
        discrepancy = (self._squared_gaps(activations) * self._shares).sum()
        loss = entropy(logits).mean().float() + self._settings.fitness_lambda * discrepancy
        return _Pass(loss, self._features_of(activations))

    def _follow_domain(self) -> None:
        """Let the domain follow the latest batch; store what is known if the batch begins another domain."""
        moments = self._first.latest()
        if self._domain.differs(moments, by=self._settings.shift_threshold):
            self._knowledge.store(most=self._settings.max_domains)
            self._domain.moments = None
            self._num_batches = 0
        for _ in range(1 + self._settings.num_directions):
            self._domain.follow(moments)

    def _draw_direction(self) -> "_Direction":
        """Return a random perturbation of the mixture's weights and of the remainder."""
        sizes = (self._knowledge.num_stored, len(self._origin))
        scales = (self._settings.mixture_perturbation_scale, self._settings.perturbation_scale)
        drawn = [scale * self._draw(size) for size, scale in zip(sizes, scales, strict=True)]
        return _Direction(*copy_to_device(drawn, self.device))

    def _draw(self, count: int) -> torch.Tensor:
        """Return *count* numbers of random sign, whose sizes are uniform between a half and 1."""
        sizes = (torch.rand(count, generator=self.generator) + 1) / 2
        return sizes * (1 - 2 * torch.bernoulli(torch.full((count,), 0.5), generator=self.generator))


class _Pass(NamedTuple):
    """Loss, a scalar, and features (B, D) of a batch."""

    loss: torch.Tensor
    features: torch.Tensor


class _Direction(NamedTuple):
    """A perturbation of the mixture's weights (M,) and of the remainder (P,)."""

    weights: torch.Tensor
    remainder: torch.Tensor


class _Knowledge(GrowingState):
    """The difference of P parameters from the source's: a mixture of M stored differences, plus a remainder.

    *sizes* are the numbers of values of each parameter. The first stored difference is the source's, zero.
    """

    state_attrs = ("_stored", "_weights", "_remainder")

    def __init__(self, sizes: list[int], device: torch.device) -> None:
        self._sizes = sizes
        self._stored = torch.zeros(1, sum(sizes), device=device)
        self._weights = torch.zeros(1, device=device)
        self._remainder = torch.zeros(sum(sizes), device=device)

    @property
    def num_stored(self) -> int:
        """M."""
        return len(self._stored)

    def difference(self, direction: _Direction | None = None) -> torch.Tensor:
        """Return the difference (P,), perturbed by *direction*."""
        weights, remainder = self._weights, self._remainder
        if direction is not None:
            weights, remainder = weights + direction.weights, remainder + direction.remainder
        return self._mix(weights) + remainder

    def _mix(self, weights: torch.Tensor) -> torch.Tensor:
        return (_SHARPNESS * weights).softmax(0) @ self._stored

    def step(
        self, directions: Sequence[_Direction], slopes: Sequence[torch.Tensor], settings: ZoaHyperparameters
    ) -> None:
        """Step against the mean of the estimated gradients, from the *slopes* of the loss along *directions*."""
        pairs = list(zip(directions, slopes, strict=True))
        gradient = torch.stack([slope / each.remainder for each, slope in pairs]).mean(0)
        self._remainder -= settings.lr * (gradient + settings.weight_decay * self._remainder)
        if self.num_stored > 1:
            gradient = torch.stack([slope / each.weights for each, slope in pairs]).mean(0)
            self._weights *= 1 - settings.mixture_lr * _MIXTURE_DECAY
            self._weights -= settings.mixture_lr * gradient / (gradient.abs() + 1e-8)

    def store(self, *, most: int) -> None:
        """Store the present difference, which stays the same, and drop a stored one beyond *most*."""
        present = self.difference()
        if self.num_stored > most:
            self._drop(1 + self._most_redundant())
        self._remainder = present - self._mix(self._weights)
        weight = self._weight_of_new()
        self._stored = torch.cat([self._stored, present.unsqueeze(0)])
        self._weights = torch.cat([self._weights, weight.unsqueeze(0)])
        self._remainder = present - self._mix(self._weights)

    def _weight_of_new(self) -> torch.Tensor:
        """Return the weight of the present difference in the mixture, a scalar."""
        sizes = torch.stack([each.abs().mean() for each in torch.split(self._remainder, self._sizes)])
        excess = (sizes.max() / _USUAL_SIZE - 1).clamp(min=0)
        weights = _SHARPNESS * self._weights
        weight = torch.maximum(weights.max(), weights.logsumexp(0) + excess.log()) / _SHARPNESS
        return weight.clamp(-_LARGEST_WEIGHT, _LARGEST_WEIGHT)

    def _most_redundant(self) -> int:
        """Return which of the stored differences, without the source's, is the earlier of the most similar pair."""
        parts = torch.split(self._stored[1:], self._sizes, 1)
        cosines = torch.stack([(unit := normalize(part, dim=1)) @ unit.T for part in parts]).mean(0)
        above = torch.ones_like(cosines).triu(1).bool()
        return int(torch.where(above, cosines, -torch.inf).argmax()) // len(cosines)

    def _drop(self, number: int) -> None:
        self._stored, self._weights = (
            torch.cat([each[:number], each[number + 1 :]]) for each in (self._stored, self._weights)
        )


class _StageMeans:
    """Keeps the outputs of each stage of a ResNet but the last, averaged over positions, in the latest forward pass."""

    def __init__(self, model: nn.Module) -> None:
        stages = [module for name, module in model.named_modules() if _STAGE.fullmatch(name)][:-1]
        self._latest = [torch.empty(0)] * len(stages)
        for number, stage in enumerate(stages):
            stage.register_forward_hook(partial(self._keep, number))

    def latest(self) -> list[torch.Tensor]:
        """Return the means of each stage, (B, C) each; none for a network that is no ResNet."""
        return list(self._latest)

    def _keep(self, number: int, _stage: nn.Module, _inputs: object, outputs: torch.Tensor) -> None:
        self._latest[number] = outputs.flatten(2).mean(2)


def _shares(widths: Sequence[int], device: torch.device) -> torch.Tensor:
    """Return the share of each activation (A,) in the mean over layers of these *widths*, and within each layer."""
    return torch.cat([torch.full((width,), 1 / (width * len(widths)), device=device) for width in widths])


def _first_norm(model: nn.Module) -> nn.Module:
    """Return the first norm layer of *model*."""
    return next(layer for layer in model.modules() if isinstance(layer, NORM_LAYERS))


def _find_frozen(model: nn.Module, tokens: Tokens | None, settings: ZoaHyperparameters) -> tuple[str, ...]:
    """Return the names of the norm layers that do not adapt, in order."""
    top = top_layers(model, Zoa.name, named=settings.frozen_layers)
    if settings.frozen_layers is not None:
        return top
    norms = [name for name, layer in model.named_modules() if isinstance(layer, NORM_LAYERS)]
    below = _up_to_first_block(model, norms, tokens)
    return tuple(name for name in norms if name in {*below, *top} or name.endswith(_BEFORE_SHORTCUT))


def _up_to_first_block(model: nn.Module, norms: Sequence[str], tokens: Tokens | None) -> Sequence[str]:
    """Return the names among *norms* up to the first block of a ViT or ResNet; none for other networks."""
    blocks = [
        name
        for name, module in model.named_modules()
        if (module is tokens.blocks[0] if tokens else _FIRST_OF_RESNET.fullmatch(name))
    ]
    inside = [number for number, name in enumerate(norms) if name.startswith(tuple(f"{block}." for block in blocks))]
    return norms[: inside[-1] + 1] if inside else ()
