"""DeYO: entropy minimisation on samples of low entropy whose prediction depends on the shape of the object.

Lee et al. 2024, "Entropy is not enough for test-time adaptation: from the perspective of disentangled factors". The
model adapts on a sample if its entropy H is below tau = deyo_margin * ln K and its pseudo-label probability difference
PLPD = p_y(x) - p_y(x') is above `plpd_threshold`, where y is the predicted label and x' the image with shuffled
patches. The loss is the mean over these samples of [exp(E0 - H) + exp(PLPD)] * H, where the weight in brackets has no
gradient and E0 = e_margin * ln K. Parameters are SAR's. The x' of the samples below tau form a separate batch, with its
own batch statistics, as in the authors' code.
"""

import math
from typing import Any

import torch
from torch import nn
from torch.nn.functional import interpolate

from tta_pipeline.methods.affine_parameters import select_affine_parameters
from tta_pipeline.methods.entropy.entries import DeyoHyperparameters
from tta_pipeline.methods.gradient_method import GradientMethod
from tta_pipeline.methods.losses import entropy
from tta_pipeline.methods.norm_layers import use_batch_statistics
from tta_pipeline.methods.top_layers import top_layers


class Deyo(GradientMethod):
    """Minimises, over norm layers below the top, the weighted entropy of samples whose label depends on their shape."""

    name = "deyo"

    def __init__(self, model: nn.Module, hyperparameters: DeyoHyperparameters, **kwargs: Any) -> None:
        self._named = hyperparameters.frozen_layers
        super().__init__(model, hyperparameters, **kwargs)
        self._tau = hyperparameters.deyo_margin * math.log(self.num_classes)
        self._e0 = hyperparameters.e_margin * math.log(self.num_classes)
        self._plpd_threshold = hyperparameters.plpd_threshold
        self._patch_len = hyperparameters.patch_len

    def _select(self, model: nn.Module) -> list[nn.Parameter]:
        use_batch_statistics(model)
        self.frozen_layers = top_layers(model, self.name, named=self._named)
        return select_affine_parameters(model, self.name, frozen=self.frozen_layers)

    def _adapt(self, images: torch.Tensor) -> torch.Tensor:
        logits = self._forward(images)
        # The host waits for the device, here and below: the patches of these samples form a separate batch.
        certain = (entropy(logits.detach()) < self._tau).nonzero().squeeze(1)
        if len(certain):
            plpd = self._plpd(images[certain], logits[certain].detach())
            kept = (plpd > self._plpd_threshold).nonzero().squeeze(1)
            if len(kept):
                loss = self._weighted_entropy(logits[certain[kept]], plpd[kept])
                self._step(loss, num_samples=len(images), num_adapted=len(kept))
        return logits

    def _weighted_entropy(self, logits: torch.Tensor, plpd: torch.Tensor) -> torch.Tensor:
        entropies = entropy(logits)
        return ((torch.exp(self._e0 - entropies.detach()) + plpd.exp()) * entropies).mean()

    @torch.no_grad()
    def _plpd(self, images: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
        labels = logits.argmax(1, keepdim=True)
        shuffled = self._forward_some(shuffle_patches(images, self._patch_len, self.generator))
        return (logits.softmax(1).gather(1, labels) - shuffled.softmax(1).gather(1, labels)).squeeze(1)


def shuffle_patches(images: torch.Tensor, patch_len: int, generator: torch.Generator) -> torch.Tensor:
    """Return *images* (B, C, H, W), each cut into *patch_len* x *patch_len* patches and reassembled in random order.

    If the patches do not divide an image evenly, the image is reduced first and restored to its size at the end, both
    bilinearly.
    """
    count, channels, height, width = images.shape
    rows, columns = height // patch_len, width // patch_len
    patches = _resize(images, rows * patch_len, columns * patch_len)
    patches = patches.reshape(count, channels, patch_len, rows, patch_len, columns).permute(0, 2, 4, 1, 3, 5)
    patches = patches.reshape(count, patch_len**2, channels, rows, columns)
    order = torch.rand(count, patch_len**2, generator=generator, device=images.device).argsort(1)
    patches = patches[torch.arange(count, device=images.device)[:, None], order]
    patches = patches.reshape(count, patch_len, patch_len, channels, rows, columns).permute(0, 3, 1, 4, 2, 5)
    return _resize(patches.reshape(count, channels, rows * patch_len, columns * patch_len), height, width)


def _resize(images: torch.Tensor, height: int, width: int) -> torch.Tensor:
    if images.shape[2:] == (height, width):
        return images
    return interpolate(images, (height, width), mode="bilinear", antialias=True)
