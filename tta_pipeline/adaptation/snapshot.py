"""Tensors of modules as they were, to come back to."""

import torch
from torch import nn


class Snapshot:
    """A copy of what adaptation can change in *modules*: trainable parameters, and all buffers."""

    def __init__(self, *modules: nn.Module) -> None:
        self._tensors = [
            *(parameter for module in modules for parameter in module.parameters() if parameter.requires_grad),
            *(buffer for module in modules for buffer in module.buffers()),
        ]
        self._copies = [tensor.detach().clone() for tensor in self._tensors]

    @torch.no_grad()
    def restore(self) -> None:
        """Write the copies back, in place, so that optimisers and compiled code keep their tensors."""
        for tensor, copy in zip(self._tensors, self._copies, strict=True):
            tensor.copy_(copy)
