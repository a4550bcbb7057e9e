"""SPA: the prediction for an image teaches that for a deteriorated view of it, where it is the surer of the two.

Niu et al. 2025, "Self-bootstrapping for versatile test-time adaptation", section 3. Two views of each image keep its
geometry:

- Low-frequency amplitude mask (equation 4): a random share m of the amplitudes whose frequencies lie in the middle
  alpha h x alpha w of the spectrum are zero; phases stay.
- Noise (equation 5): (1 - gamma) x + gamma epsilon, with epsilon of a standard normal distribution.

Here x goes from -1 to 1, as in their ViT-B, whatever mean and std the model takes. Active self-bootstrapping (equations
1 and 2): the loss is KL(p(x) || p(view)), with p(x) a constant, over the samples whose largest probability is higher
without the deterioration; its mean for each view, summed. The views are predicted through a linear predictor between
features and classifier, which keeps the model from trivial solutions and is left out of the prediction.

The norm layers adapt with the rate `lr`, the predictor with `predictor_lr_factor` times as much. The prediction is that
of the image, before the update. Where the paper leaves it open, this is what the authors' program did that gave the
published numbers (mr-eggplant/SPA, facts only, since its code is not free): epsilon is drawn once for all images of a
batch, and gamma is learned for each patch of the image, to raise the loss, with its mean held (`NoiseShares`).
"""

import math
from typing import Any

import torch
from torch import nn

from tta_pipeline.methods.augmentations import in_float32
from tta_pipeline.methods.catalogue import SpaHyperparameters
from tta_pipeline.methods.losses import soft_cross_entropy
from tta_pipeline.methods.method import GradientMethod
from tta_pipeline.methods.predictor import Predictor
from tta_pipeline.methods.snapshot import Keeper

_NUM_PATCHES = 14
"""Patches in a row and in a column that have a share of noise each: the authors' have 16 of 224 pixels a side."""


class Spa(GradientMethod):
    """Adapts the affine parameters of all norm layers, and a predictor, to predict images from worse views of them."""

    name = "spa"
    keeps = ("_predictor", "_shares")

    def __init__(self, model: nn.Module, hyperparameters: SpaHyperparameters, **kwargs: Any) -> None:
        super().__init__(model, hyperparameters, **kwargs)
        self._settings = hyperparameters
        self._predictor = Predictor(
            self.model,
            self._optimizer,
            num_classes=self.num_classes,
            lr=hyperparameters.predictor_lr_factor * hyperparameters.lr,
            method=self.name,
        )
        self._shares = NoiseShares(hyperparameters.noise_ratio, self.device)

    def _compiled(self) -> list[tuple[object, str]]:
        return [(self, "_bootstrapping_loss")]

    def _adapt(self, images: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            logits = self._forward(images)
        weak = torch.stack([self._through_predictor(view) for view in self._views(images)])
        # The host waits for the places: the step, including momentum, and the counters depend on them.
        is_chosen = _confidence(logits) > _confidence(weak.detach())
        views, rows = is_chosen.nonzero(as_tuple=True)
        if len(rows):
            loss = self._bootstrapping_loss(weak[views, rows], logits[rows], is_chosen.sum(1)[views])
            self._step(loss, num_samples=len(weak) * len(images), num_adapted=len(rows))
            self._shares.step()
        return logits

    def _views(self, images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        settings = self._settings
        return (
            low_frequencies_masked(
                images, self.generator, region=settings.mask_region, mask_ratio=settings.mask_ratio
            ),
            with_noise(images, self.generator, shares=self._shares.over(images.shape[2:])),
        )  # fmt: skip

    def _through_predictor(self, images: torch.Tensor) -> torch.Tensor:
        self._forward(images)
        return self._predictor.logits()

    def _bootstrapping_loss(self, weak: torch.Tensor, strong: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
        """Return the loss of the chosen logits (M, K) of views and images; *counts*: how many each one's view has."""
        # The divergence is the cross entropy less the entropy of the target, which has no gradient.
        return (soft_cross_entropy(weak, strong) / counts).sum()


def _confidence(logits: torch.Tensor) -> torch.Tensor:
    """Return the largest probability of each row of *logits* (..., K)."""
    return logits.softmax(-1).amax(-1)


@in_float32
def low_frequencies_masked(
    images: torch.Tensor, generator: torch.Generator, *, region: float, mask_ratio: float
) -> torch.Tensor:
    """Return *images* (B, 3, H, W) without a share *mask_ratio* of their low frequencies; values may leave [0, 1].

    Low are those of at most half of *region* in cycles per pixel, in both directions. Each image and channel has its
    own draws, and a frequency shares its draw with its negative, without which the result would not be real.
    """
    # The sum of two uniform numbers is uniform on the circle: so each frequency of a pair is masked as often as one.
    drawn = torch.rand(images.shape, generator=generator, device=images.device)
    is_kept = (drawn + drawn.flip((2, 3)).roll((1, 1), (2, 3))) % 1 >= mask_ratio
    rows, columns = (_is_low(side, region, images.device) for side in images.shape[2:])
    spectrum = torch.fft.fft2(2 * images - 1)
    masked: torch.Tensor = torch.fft.ifft2(spectrum * (is_kept | ~(rows[:, None] & columns)))
    return (masked.real + 1) / 2


def _is_low(side: int, region: float, device: torch.device) -> torch.Tensor:
    """Return which frequencies of a side are low, bool (side,), in the order of the Fourier transform."""
    cycles = torch.arange(side, device=device)
    return torch.minimum(cycles, side - cycles) <= region * side / 2


def with_noise(images: torch.Tensor, generator: torch.Generator, *, shares: torch.Tensor) -> torch.Tensor:
    """Return *images* (B, 3, H, W) mixed with normal noise of which each pixel has its share, cut off to [0, 1].

    All images have the same noise. Gradients reach *shares* (H, W).
    """
    noise = torch.empty(images.shape[1:], device=images.device).normal_(0.5, 0.5, generator=generator)
    with torch.autocast(images.device.type, enabled=False):
        return torch.lerp(images.float(), noise, shares).clamp(0, 1)


class NoiseShares(Keeper):
    """The share of noise in each patch of a view, *mean_share* at first, then where it raises the loss.

    Shares are squares of what is learned, by SGD with rate 1 and momentum 0.9, upwards; after each step this is scaled
    so that the mean share is *mean_share* again, and cut off to [-1, 1]. All of it as in the authors' program.
    """

    keeps = ("_roots", "_ascent")

    def __init__(self, mean_share: float, device: torch.device) -> None:
        self._mean_share = mean_share
        self._roots = nn.Parameter(torch.full((_NUM_PATCHES, _NUM_PATCHES), math.sqrt(mean_share), device=device))
        self._ascent = torch.optim.SGD([self._roots], lr=1, momentum=0.9, maximize=True)

    def over(self, size: torch.Size) -> torch.Tensor:
        """Return the share of each pixel of an image of *size*, (H, W); it has a gradient."""
        with torch.autocast(self._roots.device.type, enabled=False):
            return nn.functional.interpolate(self._roots[None, None] ** 2, size=tuple(size), mode="nearest")[0, 0]

    @torch.no_grad()
    def step(self) -> None:
        """Learn from the gradient that the shares have got."""
        self._ascent.step()
        self._ascent.zero_grad()
        mean_share = (self._roots**2).mean().clamp(min=torch.finfo(self._roots.dtype).tiny)
        self._roots.mul_((self._mean_share / mean_share).sqrt()).clamp_(-1, 1)
