"""REM: predictions with more and more patches masked should agree, and should not become more certain.

Han et al. 2025, "Ranked entropy minimization for continual test-time adaptation", section 3:

- Explicit mask chaining: each image is predicted n times, without a share of 0, m, 2 m, ... of its patches. The patches
  left out have the class token's highest attention in the last block, averaged over the heads. The other patches pass
  through all blocks.
- Masked consistency loss: the cross entropy between each prediction and every prediction with a smaller share left out,
  which has no gradient; summed over the pairs.
- Entropy ranking loss, weighted by lambda: max(0, H(smaller) - H(larger) + margin) for each such pair, where the
  entropy for the larger share has no gradient. So no prediction becomes more certain when it sees less of the image.

The norm layers below the top adapt, as in SAR. Constants are the authors', for a ViT-B. The method predicts from the
whole image, before the update.
"""

from itertools import combinations
from math import log
from typing import Any

import torch
from torch import nn

from tta_pipeline.methods.affine_parameters import select_affine_parameters
from tta_pipeline.methods.entropy.entries import RemHyperparameters
from tta_pipeline.methods.gradient_method import GradientMethod
from tta_pipeline.methods.losses import entropy, soft_cross_entropy
from tta_pipeline.methods.tokens import Tokens
from tta_pipeline.methods.top_layers import top_layers


class Rem(GradientMethod):
    """Adapts the norm layers of a ViT below its top, so that masked predictions agree and are less certain."""

    name = "rem"

    def __init__(self, model: nn.Module, hyperparameters: RemHyperparameters, **kwargs: Any) -> None:
        self._tokens = Tokens(model, self.name)
        self._named = hyperparameters.frozen_layers
        super().__init__(model, hyperparameters, **kwargs)
        self._settings = hyperparameters

    def _select(self, model: nn.Module) -> list[nn.Parameter]:
        self.frozen_layers = top_layers(model, self.name, named=self._named)
        return select_affine_parameters(model, self.name, frozen=self.frozen_layers)

    def _adapt(self, images: torch.Tensor) -> torch.Tensor:
        logits = self._forward(images)
        attention = self._tokens.class_attention()
        chain = [logits]
        for number in range(1, self._settings.num_predictions):
            kept = int(attention.shape[1] * (1 - number * self._settings.mask_ratio))
            with self._tokens.only(attention.topk(kept, largest=False).indices):
                chain.append(self._forward_some(images))
        self._step(self._ranking_loss(chain), num_samples=len(chain) * len(images), num_adapted=len(images))
        return logits

    def _ranking_loss(self, chain: list[torch.Tensor]) -> torch.Tensor:
        """Return the loss of a batch; *chain* holds logits (B, K), from the whole images to the fewest patches."""
        margin = self._settings.margin * log(self.num_classes)
        loss = torch.zeros((), device=self.device)
        for seen, hidden in combinations(chain, 2):
            inversion = (entropy(seen) - entropy(hidden).detach() + margin).relu()
            loss = loss + (soft_cross_entropy(hidden, seen.detach()) + self._settings.lambda_rank * inversion).mean()
        return loss
