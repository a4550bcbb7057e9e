"""A network without its last linear layer."""

import torch
from torch import nn


class FeaturesOf(nn.Module):
    """A network without its last linear layer, which is kept as `last`."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network
        self.last: nn.Linear = [each for each in network.modules() if isinstance(each, nn.Linear)][-1]

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return the input of the last linear layer, (B, D)."""
        kept: list[torch.Tensor] = []
        with self.last.register_forward_pre_hook(lambda _, inputs: kept.append(inputs[0])):
            self.network(images)
        return kept[0]
