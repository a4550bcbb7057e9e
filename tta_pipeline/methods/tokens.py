"""Tokens of a vision transformer: drop patches, add prompts, and read the class token and its attention.

timm's ViT and DeiT and torchvision's ViT are supported: the class token, which comes first, and the patches pass
through a list of blocks with self-attention. The order of the patches does not matter to the blocks, since positions
are added before them.
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn.functional import linear

from tta_pipeline.errors import AdaptationError


class Tokens:
    """The tokens that enter the first block and the last attention of *model*.

    Raises:
        AdaptationError: *model* is not a ViT with a class token.
    """

    def __init__(self, model: nn.Module, method: str) -> None:
        found = _find_blocks(model)
        if found is None:
            raise AdaptationError(
                f"{type(model).__name__} has no class token and patches; {method} expects a ViT or DeiT from timm, or "
                "a ViT from torchvision: use such a model, or another method"
            )
        self.blocks, self.num_prefix, self.patch_area = found
        """Blocks, number of tokens before the patches (the class token is the first), and pixels of a patch."""
        self.attentions = [_attention(block) for block in self.blocks]
        self._kept: torch.Tensor | None = None
        self._prompts: torch.Tensor | None = None
        self._latest: torch.Tensor | None = None
        self._attention: Any = self.attentions[-1]
        # Hooks are permanent, since compiled code ignores hooks added later.
        self.blocks[0].register_forward_pre_hook(self._change_tokens)
        self._attention.register_forward_pre_hook(self._keep)

    @property
    def width(self) -> int:
        """Size of a token."""
        attention = self._attention
        return int(attention.qkv.in_features if hasattr(attention, "qkv") else attention.embed_dim)

    def draw_prompts(self, prompts: torch.Tensor, generator: torch.Generator) -> None:
        """Draw *prompts*, any shape, uniformly within Xavier's bound for a linear layer from a patch to a token.

        The patch has three colours. The initialisation is that of visual prompt tuning (Jia et al. 2022), which the
        programs of FOA, FOZO and DPCore share.
        """
        bound = math.sqrt(6 / (3 * self.patch_area + self.width))
        prompts.uniform_(-bound, bound, generator=generator)

    @contextmanager
    def only(self, patches: torch.Tensor) -> Iterator[None]:
        """Make forward passes use only the prefix and the *patches* with these indices, int64 (B, M)."""
        self._kept = patches
        try:
            yield
        finally:
            self._kept = None

    @contextmanager
    def prompted(self, prompts: torch.Tensor) -> Iterator[None]:
        """Make forward passes use *prompts*, (N, D), between the prefix and the patches of every image."""
        self._prompts = prompts
        try:
            yield
        finally:
            self._prompts = None

    @torch.no_grad()
    def class_attention(self) -> torch.Tensor:
        """Return how much the class token attends to each patch in the last block, (B, P), and release the tokens.

        The attention is from the latest forward pass, averaged over the heads.
        """
        assert self._latest is not None, "no forward pass since the last call"
        tokens, self._latest = self._latest.detach(), None
        attention: Any = self._attention
        of_input = attention.qkv if hasattr(attention, "qkv") else attention
        weight, bias = (of_input.weight, of_input.bias) if hasattr(attention, "qkv") else (
            attention.in_proj_weight, attention.in_proj_bias
        )  # fmt: skip
        of_query, of_key, _ = weight.chunk(3)
        query_bias, key_bias, _ = (None,) * 3 if bias is None else bias.chunk(3)
        query: torch.Tensor = linear(tokens[:, 0], of_query, query_bias).reshape(len(tokens), attention.num_heads, -1)
        keys: torch.Tensor = linear(tokens, of_key, key_bias).reshape(*tokens.shape[:2], attention.num_heads, -1)
        if hasattr(attention, "q_norm"):
            query, keys = attention.q_norm(query), attention.k_norm(keys)
        scores = torch.einsum("bhd,bnhd->bhn", query, keys).float() * query.shape[-1] ** -0.5
        attended: torch.Tensor = scores.softmax(-1).mean(1)
        return attended[:, self.num_prefix :]

    def _change_tokens(self, _: nn.Module, inputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...] | None:
        tokens, *others = inputs
        if self._prompts is not None:
            prompts = self._prompts.to(tokens.dtype).expand(len(tokens), -1, -1)
            return torch.cat([tokens[:, : self.num_prefix], prompts, tokens[:, self.num_prefix :]], 1), *others
        if self._kept is None:
            return None
        index = self._kept.unsqueeze(-1).expand(-1, -1, tokens.shape[-1]) + self.num_prefix
        return torch.cat([tokens[:, : self.num_prefix], tokens.gather(1, index)], 1), *others

    def _keep(self, _: nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
        self._latest = inputs[0]


class ClassTokens:
    """Keeps the class token that entered each of *attentions* in the latest forward pass."""

    def __init__(self, attentions: Sequence[nn.Module]) -> None:
        self._latest: list[torch.Tensor] = [torch.empty(0)] * len(attentions)
        for number, attention in enumerate(attentions):
            attention.register_forward_pre_hook(partial(self._keep, number))

    def latest(self) -> list[torch.Tensor]:
        """Return the class token at each attention in the latest forward pass, (B, D) each."""
        return list(self._latest)

    def _keep(self, number: int, _attention: nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
        self._latest[number] = inputs[0][:, 0]


def _attention(block: Any) -> nn.Module:
    """Return the attention layer of *block*; its input has passed the block's first norm layer."""
    attention: nn.Module = block.attn if hasattr(block, "attn") else block.self_attention
    return attention


def has_class_token(model: nn.Module) -> bool:
    """Return whether `Tokens` supports *model*."""
    return _find_blocks(model) is not None


def _find_blocks(model: nn.Module) -> tuple[list[nn.Module], int, int] | None:
    module: Any
    for module in model.modules():
        if "VisionTransformer" not in {base.__name__ for base in type(module).__mro__}:
            continue
        if getattr(module, "cls_token", None) is not None and hasattr(module, "blocks"):  # timm
            return list(module.blocks), int(module.num_prefix_tokens), math.prod(module.patch_embed.patch_size)
        if hasattr(module, "class_token") and hasattr(module, "encoder"):  # torchvision
            return list(module.encoder.layers), 1, int(module.patch_size) ** 2
    return None
