"""IMSE: the singular values of a ViT's linear layers adapt; a domain like an earlier one restores its stored values.

Baek et al. 2026, "IMSE: Intrinsic mixture of spectral experts fine-tuning for test-time adaptation":

- Spectral experts: the weight of each linear layer in attention and feed-forward networks is U diag(s) V^T; only s
  adapts. The top, the last quarter of the blocks, stays, as in SAR.
- Loss: the mean entropy of the samples below E0 = e_margin * ln K, minus `diversity_weight` times the diversity. The
  step is SAR's: an ascent by `rho`, a second gradient there on the samples that are still below E0, and Adam.
- Diversity: for each linear layer of the top, the inputs of unit length are projected on the right singular vectors V;
  the standard deviation of each projection over images and tokens is how differently an expert is used. Their mean,
  without the largest, is summed over the layers and divided by the number of blocks.
- Domain-aware retrieval: means and variances of the tokens that enter the first block describe a domain, and follow the
  stream with momentum 0.8. If their divergence from a batch's, the sum of both directions between normal
  distributions, is above `shift_threshold`, the domain's description and singular values are stored. The values of the
  stored domain most like the batch, or of the source, take their place, and the optimiser starts over.

Constants are the authors' for a ViT-B. If no sample is below E0, the step is the diversity's alone, as in their code.
There, the description of a domain leaves out batches that are smaller than the others.
"""

import math
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn.functional import linear, normalize
from torch.nn.utils.parametrize import is_parametrized, register_parametrization

from tta_pipeline.methods.domains import Domain, InputMoments, divergence
from tta_pipeline.methods.entropy.entries import ImseHyperparameters
from tta_pipeline.methods.entropy.sharpness_ascent import Ascent
from tta_pipeline.methods.gradient_method import GradientMethod
from tta_pipeline.methods.losses import entropy
from tta_pipeline.methods.stateful import StateDict, Stateful
from tta_pipeline.methods.tokens import Tokens

_LEAST_SINGULAR_VALUE = 1e-6


class Imse(GradientMethod):
    """Adapts the singular values of the linear layers below the top of a ViT, and stores them for each domain."""

    name = "imse"
    state_attrs = ("_domains",)

    def __init__(self, model: nn.Module, hyperparameters: ImseHyperparameters, **kwargs: Any) -> None:
        self._tokens = Tokens(model, self.name)
        super().__init__(model, hyperparameters, **kwargs)
        self._settings = hyperparameters
        self._e0 = hyperparameters.e_margin * math.log(self.num_classes)
        self._ascent = Ascent(self._values, rho=hyperparameters.rho)
        self._first_tokens = InputMoments(self._tokens.blocks[0], num_prefix=self._tokens.num_prefix)
        self._domains = _Domains(self._values)
        self._fresh_optimizer = self._optimizer.state_dict()
        with torch.no_grad():
            source = self._require_source_data("means and variances of the source's tokens")
            for images in self._first_images(source, hyperparameters.source_size):
                self.model(images)
                self._domains.present.follow(self._first_tokens.latest())
        self._domains.store([values.detach().clone() for values in self._values])

    def _select(self, model: nn.Module) -> list[nn.Parameter]:
        model.requires_grad_(False)
        blocks = self._tokens.blocks
        num_top = max(1, len(blocks) // 4)
        self._values = [values for block in blocks[:-num_top] for values in _adapt_singular_values(block)]
        self._diversity = _Diversity(blocks[-num_top:])
        return self._values

    def _adapt(self, images: torch.Tensor) -> torch.Tensor:
        logits = self._forward(images)
        if self._take_up_similar_domain():
            logits = self._forward(images)
        is_reliable = self._is_reliable(logits)
        self._backward(self._loss_of(logits, is_reliable), num_samples=len(images))
        self._ascent.climb()
        logits_above = self._forward(images)
        is_reliable = is_reliable & self._is_reliable(logits_above)
        self._backward(self._loss_of(logits_above, is_reliable), num_samples=len(images))
        self._ascent.restore()
        self._update()
        return logits

    def _is_reliable(self, logits: torch.Tensor) -> torch.Tensor:
        return entropy(logits.detach()) < self._e0

    def _loss_of(self, logits: torch.Tensor, is_reliable: torch.Tensor) -> torch.Tensor:
        """Return the loss of *logits* (B, K); only rows with true *is_reliable* (B,) enter the mean entropy."""
        entropies = torch.where(is_reliable, entropy(logits), 0)
        mean_entropy = entropies.sum() / is_reliable.sum().clamp(min=1)
        return mean_entropy - self._settings.diversity_weight * self._diversity.take()

    @torch.no_grad()
    def _take_up_similar_domain(self) -> bool:
        """Follow the domain of the latest forward pass, and return whether another domain's values were restored."""
        moments = self._first_tokens.latest()
        is_new = self._domains.present.differs(moments, by=self._settings.shift_threshold)
        if is_new:
            self._domains.store([values.detach().clone() for values in self._values])
            torch._foreach_copy_(list[torch.Tensor](self._values), self._domains.nearest(moments))
            self._optimizer.load_state_dict(self._fresh_optimizer)
        self._domains.present.follow(moments)
        return is_new


class _SingularValues(nn.Module):
    """Gives a weight (outputs, inputs) other singular values; torch calls it where the weight is read."""

    def __init__(self, weight: torch.Tensor) -> None:
        super().__init__()
        left, values, right = torch.linalg.svd(weight.detach().float(), full_matrices=False)
        rank = int((values > _LEAST_SINGULAR_VALUE).sum())
        self.left = nn.Parameter(left[:, :rank].contiguous(), requires_grad=False)
        self.right = nn.Parameter(right[:rank].contiguous(), requires_grad=False)
        self.values = nn.Parameter(values[:rank].clone())

    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        """Return the weight with the current singular values, in the precision of *weight*."""
        return ((self.left * self.values) @ self.right).to(weight.dtype)


def _weights(block: nn.Module) -> list[tuple[nn.Module, str]]:
    """Return the linear layers of *block*, each with the name of its weight."""
    joint = [(layer, "in_proj_weight") for layer in block.modules() if isinstance(layer, nn.MultiheadAttention)]
    return joint + [(layer, "weight") for layer in block.modules() if isinstance(layer, nn.Linear)]


def _adapt_singular_values(block: nn.Module) -> list[nn.Parameter]:
    """Let the singular values of the linear layers of *block* adapt, and return them; earlier ones are replaced."""
    found: list[nn.Parameter] = []
    layer: Any
    for layer, name in _weights(block):
        known = layer.parametrizations[name] if is_parametrized(layer, name) else None
        if known is not None and isinstance(known[-1], _SingularValues):
            known[-1] = _SingularValues(known.original)
        else:
            register_parametrization(layer, name, _SingularValues(getattr(layer, name)))
        found.append(layer.parametrizations[name][-1].values)
    return found


class _Diversity:
    """How differently the latest inputs of the linear layers of *blocks* use their right singular vectors.

    The output layer of torch's own attention is left out: torch reads its weight without calling it.
    """

    def __init__(self, blocks: list[nn.Module]) -> None:
        self._num_blocks = len(blocks)
        self._latest: dict[int, torch.Tensor] = {}
        for layer, name in (each for block in blocks for each in _weights(block)):
            right = torch.linalg.svd(getattr(layer, name).detach().float(), full_matrices=False).Vh
            layer.register_forward_pre_hook(partial(self._keep, right))

    def _keep(self, right: torch.Tensor, layer: nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
        if torch.is_grad_enabled():
            used = linear(normalize(inputs[0].float(), dim=-1), right).flatten(0, -2).std(0)
            self._latest[id(layer)] = (used.sum() - used.max()) / max(len(used) - 1, 1)

    def take(self) -> torch.Tensor:
        """Return the diversity of the latest forward pass, a scalar."""
        latest, self._latest = self._latest, {}
        return torch.stack(list(latest.values())).sum() / self._num_blocks


class _Domains(Stateful):
    """The present domain, and moments and singular values of the source and of each earlier domain."""

    def __init__(self, values: list[nn.Parameter]) -> None:
        self.present = Domain(values[0].device)
        self._moments: list[torch.Tensor] = []
        self._values: list[list[torch.Tensor]] = []
        self._device = values[0].device

    def store(self, values: list[torch.Tensor]) -> None:
        """End the present domain, and store its moments and singular *values*."""
        assert self.present.moments is not None, "no batch since the last domain"
        self._moments.append(self.present.moments)
        self._values.append(values)
        self.present.moments = None

    def nearest(self, moments: torch.Tensor) -> list[torch.Tensor]:
        """Return the singular values of the stored domain most like *moments*."""
        divergences = torch.stack([divergence(stored, moments) for stored in self._moments])
        return self._values[int(divergences.argmin())]

    def state_dict(self) -> StateDict:
        """Return copies; the number of domains grows over a stream."""
        copies = [[values.clone() for values in each] for each in self._values]
        moments = [each.clone() for each in self._moments]
        return {"present": self.present.state_dict(), "moments": moments, "values": copies}

    def load_state_dict(self, state: StateDict) -> None:
        """Restore copies of the tensors in *state*."""
        self.present.load_state_dict(state["present"])
        self._moments = [each.to(self._device, copy=True) for each in state["moments"]]
        self._values = [[values.to(self._device, copy=True) for values in each] for each in state["values"]]
