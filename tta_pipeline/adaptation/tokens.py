"""Tokens of a vision transformer: leaving out patches, adding prompts, and what its class token is and looks at.

Known are the ViT and DeiT of timm and the ViT of torchvision: a class token, at the first place, and patches that go
through a list of blocks, each with a self-attention. The order of patches does not matter there, since their positions
were added before.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn.functional import linear

from tta_pipeline.errors import AdaptationError


class Tokens:
    """The tokens of *model*, on their way into its first block and its last attention.

    Raises:
        AdaptationError: *model* is no ViT with a class token.
    """

    def __init__(self, model: nn.Module, method: str) -> None:
        self.blocks, self.num_prefix = _found(model, method)
        """Blocks, and number of tokens before the patches; the class token is the first of these."""
        self._kept: torch.Tensor | None = None
        self._prompts: torch.Tensor | None = None
        self._latest: torch.Tensor | None = None
        last: Any = self.blocks[-1]
        self._attention: Any = last.attn if hasattr(last, "attn") else last.self_attention
        # Hooks are permanent, since compiled code ignores hooks added later.
        self.blocks[0].register_forward_pre_hook(self._change)
        self._attention.register_forward_pre_hook(self._keep)

    @property
    def width(self) -> int:
        """Size of a token."""
        attention = self._attention
        return int(attention.qkv.in_features if hasattr(attention, "qkv") else attention.embed_dim)

    @contextmanager
    def only(self, patches: torch.Tensor) -> Iterator[None]:
        """Let forward passes go on with the prefix and *patches* alone, indices, int64 (B, M)."""
        self._kept = patches
        try:
            yield
        finally:
            self._kept = None

    @contextmanager
    def prompted(self, prompts: torch.Tensor) -> Iterator[None]:
        """Let forward passes go on with *prompts*, (N, D), between the prefix and the patches of every image."""
        self._prompts = prompts
        try:
            yield
        finally:
            self._prompts = None

    @torch.no_grad()
    def class_attention(self) -> torch.Tensor:
        """Return how much the class token attends to each patch in the last block, (B, P), and release the tokens.

        It is that of the latest forward pass, the mean over the heads.
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

    def _change(self, _: nn.Module, inputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...] | None:
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
    """Keeps what each of *blocks* makes of the class token in the latest forward pass."""

    def __init__(self, blocks: Sequence[nn.Module]) -> None:
        self._latest: list[torch.Tensor] = [torch.empty(0)] * len(blocks)
        for number, block in enumerate(blocks):
            block.register_forward_hook(partial(self._keep, number))

    def latest(self) -> list[torch.Tensor]:
        """Return the class token behind each block in the latest forward pass, (B, D) each."""
        return list(self._latest)

    def _keep(self, number: int, _block: nn.Module, _inputs: tuple[torch.Tensor, ...], tokens: torch.Tensor) -> None:
        self._latest[number] = tokens[:, 0]


def _found(model: nn.Module, method: str) -> tuple[list[nn.Module], int]:
    module: Any
    for module in model.modules():
        if "VisionTransformer" not in {base.__name__ for base in type(module).__mro__}:
            continue
        if getattr(module, "cls_token", None) is not None and hasattr(module, "blocks"):  # timm
            return list(module.blocks), int(module.num_prefix_tokens)
        if hasattr(module, "class_token") and hasattr(module, "encoder"):  # torchvision
            return list(module.encoder.layers), 1
    raise AdaptationError(
        f"{type(model).__name__} has no class token and patches; {method} expects a ViT or DeiT of timm, or a ViT of "
        "torchvision: use such a model, or another method"
    )
