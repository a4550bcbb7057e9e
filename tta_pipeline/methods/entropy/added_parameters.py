"""Parameters added to a transformer, which adapt instead of the transformer's: low-rank updates and adapters.

- LoRA: Hu et al. 2022, "LoRA: Low-rank adaptation of large language models", section 4.1: the weight W of a linear
  layer becomes W + (alpha / r) B A, with B (outputs, r) and A (r, inputs). The rank r is 8 by default. alpha is always
  8, the authors' value for RoBERTa; it stays when r changes, so that the learning rate can stay too. A starts as in the
  authors' code, uniform within 1 / sqrt(inputs). The authors update weights of attention only; here each linear layer
  has an update, and the joint weight of query, key and value has one.
- Adapters: Houlsby et al. 2019, "Parameter-efficient transfer learning for NLP": h becomes h + U gelu(D h + d) + u,
  with D (size, features) and U (features, size). Each block has one, after its feed-forward network, as in Pfeiffer et
  al. 2021, "AdapterFusion: Non-destructive task composition for transfer learning". The size is 64 by default, as in
  Chen et al. 2022, "AdaptFormer: Adapting vision transformers for scalable visual recognition". D starts as A does.

B, U, d and u start at zero, so that the model predicts as before. The caller freezes the model's own parameters.
Updates or adapters that an earlier method added to the same model are replaced.
"""

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import torch
from torch import nn
from torch.nn.functional import gelu, linear
from torch.nn.utils.parametrize import is_parametrized, register_parametrization

from tta_pipeline.errors import AdaptationError
from tta_pipeline.methods.entropy.entries import EntropyHyperparameters

_ALPHA = 8.0


class LowRankUpdate(nn.Module):
    """Adds a product of two small matrices to *weight* (outputs, inputs).

    This is a parametrization: torch calls it wherever the weight is read, including by attention that reads the weights
    of its linear layers without calling the layers, as in torchvision. The cost is a gradient of the whole product.
    """

    def __init__(self, weight: torch.Tensor, *, rank: int, generator: torch.Generator) -> None:
        super().__init__()
        num_outputs, num_inputs = weight.shape
        self.up = nn.Parameter(weight.new_zeros(num_outputs, rank))
        self.down = nn.Parameter(_draw_within_fan_in(weight, rank, num_inputs, generator))
        self._scale = _ALPHA / rank

    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        """Return the updated *weight*, in its precision."""
        updated: torch.Tensor = weight + self._scale * (self.up @ self.down)
        return updated


class Adapter(nn.Module):
    """A bottleneck with a skip connection, for the output features of a layer with *weight* (features, ...)."""

    def __init__(self, weight: torch.Tensor, *, size: int, generator: torch.Generator) -> None:
        super().__init__()
        num_features = len(weight)
        self.down = nn.Parameter(_draw_within_fan_in(weight, size, num_features, generator))
        self.down_bias = nn.Parameter(weight.new_zeros(size))
        self.up = nn.Parameter(weight.new_zeros(num_features, size))
        self.up_bias = nn.Parameter(weight.new_zeros(num_features))

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """Return adapted *features* (..., F)."""
        return features + linear(gelu(linear(features, self.down, self.down_bias)), self.up, self.up_bias)


def add_low_rank_updates(
    model: nn.Module, settings: EntropyHyperparameters, *, num_classes: int, seed: int, method: str
) -> None:
    """Add updates to attention and linear layers of *model*, except to linear layers with *num_classes* outputs."""
    generator = torch.Generator().manual_seed(seed)
    weights = list(_find_weights(model, num_classes))
    if not weights:
        raise AdaptationError(
            f"{type(model).__name__} has no linear layer except its classifier; {method} with `params: lora` expects "
            "others to adapt: use a transformer such as ViT, Swin or ConvNeXt, or other params"
        )
    for layer, name in weights:
        weight = getattr(layer, name)
        update = LowRankUpdate(weight, rank=settings.lora_rank, generator=generator)
        _register_update(layer, name, update)


def add_adapters(
    model: nn.Module, settings: EntropyHyperparameters, *, num_classes: int, seed: int, method: str
) -> None:
    """Put an adapter after each feed-forward network of *model*."""
    del num_classes  # other choices of parameters need it
    generator = torch.Generator().manual_seed(seed)
    layers = list(_find_feed_forward_ends(model))
    if not layers:
        raise AdaptationError(
            f"{type(model).__name__} has no feed-forward network of two linear layers; {method} with `params: "
            "adapters` expects one in each block: use a transformer such as ViT, Swin or ConvNeXt, or other params"
        )
    for layer in layers:
        if not hasattr(layer, "adapter"):
            layer.register_forward_hook(_apply_adapter)
        layer.adapter = Adapter(layer.weight, size=settings.adapter_size, generator=generator)


def _apply_adapter(layer: Any, _: tuple[torch.Tensor, ...], outputs: torch.Tensor) -> torch.Tensor:
    adapted: torch.Tensor = layer.adapter(outputs)
    return adapted


def _find_weights(model: nn.Module, num_classes: int) -> Iterator[tuple[nn.Module, str]]:
    """Yield the layers to update, each with the name of its weight."""
    for layer in model.modules():
        if isinstance(layer, nn.Linear) and layer.out_features != num_classes:
            yield layer, "weight"
        elif isinstance(layer, nn.MultiheadAttention) and layer.in_proj_weight is not None:
            yield layer, "in_proj_weight"


def _register_update(layer: Any, name: str, update: LowRankUpdate) -> None:
    known = layer.parametrizations[name] if is_parametrized(layer, name) else []
    if known and isinstance(known[-1], LowRankUpdate):
        known[-1] = update
    else:
        register_parametrization(layer, name, update)


def _find_feed_forward_ends(model: nn.Module) -> Iterator[nn.Linear]:
    """Yield the second of each pair of linear layers that widen and then narrow the features."""
    for parent in model.modules():
        layers = [layer for layer in parent.children() if isinstance(layer, nn.Linear)]
        for first, second in pairwise(layers):
            if first.in_features == second.out_features < second.in_features:
                yield second


def _draw_within_fan_in(like: torch.Tensor, num_rows: int, num_inputs: int, generator: torch.Generator) -> torch.Tensor:
    """Return numbers (rows, inputs), uniform within 1 / sqrt(inputs), drawn on the host: the same on every device."""
    values = torch.empty(num_rows, num_inputs).uniform_(-(num_inputs**-0.5), num_inputs**-0.5, generator=generator)
    return values.to(like)
