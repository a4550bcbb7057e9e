"""SPA: the prediction for an image is the target for worse views of it, if it is the more certain of the two.

Niu et al. 2025, "Self-bootstrapping for versatile test-time adaptation", section 3. Each image has two deteriorated
views that keep its geometry:

- Low-frequency amplitude mask (equation 4): in the middle alpha h x alpha w of the spectrum, a random share m of the
  amplitudes is set to zero; phases stay.
- Noise (equation 5): (1 - gamma) x + gamma epsilon, with epsilon from a standard normal distribution.

Here x ranges from -1 to 1, as in the authors' ViT-B, for any mean and std of the model. Active self-bootstrapping
(equations 1 and 2): the loss is KL(p(x) || p(view)), where p(x) has no gradient, over the samples whose largest
probability is higher for the image than for the view. It is averaged for each view, and summed over both views. The
views are predicted through a linear predictor between features and classifier. The predictor keeps the model from
trivial solutions; the prediction for the image does not use it.

The norm layers adapt with the learning rate `lr`, the predictor with `predictor_lr_factor` times `lr`. The method
predicts from the image, before the update. If the paper leaves a detail open, this file follows the authors'
program for the published numbers (mr-eggplant/SPA, facts only, since its code is not free): epsilon is drawn once
for all images of a batch, and gamma is learned for each patch of the image so as to raise the loss, with a fixed mean
(`NoiseShares`).
"""

import math
from typing import Any

import torch
from torch import nn

from tta_pipeline.methods.augmentations import in_float32
from tta_pipeline.methods.entropy.entries import SpaHyperparameters
from tta_pipeline.methods.entropy.predictor import Predictor
from tta_pipeline.methods.gradient_method import GradientMethod
from tta_pipeline.methods.losses import soft_cross_entropy
from tta_pipeline.methods.stateful import Stateful

_NUM_PATCHES = 14
"""Number of patches in a row and in a column, each with its own share of noise; the authors' patches have sides of 16
of 224 pixels."""


class Spa(GradientMethod):
    """Trains the affine parameters of all norm layers, and a predictor, to predict an image from its worse views."""

    name = "spa"
    state_attrs = ("_predictor", "_shares")

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

    def _adapt(self, images: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            logits = self._forward(images)
        weak = torch.stack([self._predict_view(view) for view in self._views(images)])
        # The host waits for the indices: the step, including momentum, and the counters depend on them.
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
            mask_low_frequencies(
                images, self.generator, region=settings.mask_region, mask_ratio=settings.mask_ratio
            ),
            add_noise(images, self.generator, shares=self._shares.per_pixel(images.shape[2:])),
        )  # fmt: skip

    def _predict_view(self, images: torch.Tensor) -> torch.Tensor:
        self._forward(images)
        return self._predictor.logits()

    def _bootstrapping_loss(self, weak: torch.Tensor, strong: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
        """Return the loss of the chosen logits (M, K) of views and images.

        *counts* (M,) are the numbers of chosen samples of the view that each row belongs to.
        """
        # The divergence is the cross entropy minus the entropy of the target, which has no gradient.
        return (soft_cross_entropy(weak, strong) / counts).sum()


def _confidence(logits: torch.Tensor) -> torch.Tensor:
    """Return the largest probability of each row of *logits* (..., K)."""
    return logits.softmax(-1).amax(-1)


@in_float32
def mask_low_frequencies(
    images: torch.Tensor, generator: torch.Generator, *, region: float, mask_ratio: float
) -> torch.Tensor:
    """Return *images* (B, 3, H, W) without a share *mask_ratio* of their low frequencies; values may leave [0, 1].

    A frequency is low if it is at most half of *region*, in cycles per pixel, in both directions. Each image and
    channel has its own draws. A frequency shares its draw with its negative; otherwise the result would not be real.
    """
    # The sum of two uniform numbers is uniform on the circle, so a pair of frequencies is masked as often as a single.
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


def add_noise(images: torch.Tensor, generator: torch.Generator, *, shares: torch.Tensor) -> torch.Tensor:
    """Return *images* (B, 3, H, W) mixed with normal noise and clipped to [0, 1].

    *shares* (H, W) is the share of noise in each pixel; gradients reach it. All images have the same noise.
    """
    noise = torch.empty(images.shape[1:], device=images.device).normal_(0.5, 0.5, generator=generator)
    with torch.autocast(images.device.type, enabled=False):
        return torch.lerp(images.float(), noise, shares).clamp(0, 1)


class NoiseShares(Stateful):
    """The share of noise in each patch of a view; it starts at *mean_share*, and learns to raise the loss.

    The learned parameters are the roots of the shares. SGD with learning rate 1 and momentum 0.9 moves them up the
    gradient of the loss. After each step they are scaled so that the mean share is *mean_share* again, and clipped to
    [-1, 1]. All this is as in the authors' program.
    """

    state_attrs = ("_roots", "_ascent")

    def __init__(self, mean_share: float, device: torch.device) -> None:
        self._mean_share = mean_share
        self._roots = nn.Parameter(torch.full((_NUM_PATCHES, _NUM_PATCHES), math.sqrt(mean_share), device=device))
        self._ascent = torch.optim.SGD([self._roots], lr=1, momentum=0.9, maximize=True)

    def per_pixel(self, size: torch.Size) -> torch.Tensor:
        """Return the share of noise in each pixel of an image of *size*, (H, W), with a gradient."""
        with torch.autocast(self._roots.device.type, enabled=False):
            return nn.functional.interpolate(self._roots[None, None] ** 2, size=tuple(size), mode="nearest")[0, 0]

    @torch.no_grad()
    def step(self) -> None:
        """Take a step on the shares' gradient from the latest loss."""
        self._ascent.step()
        self._ascent.zero_grad()
        mean_share = (self._roots**2).mean().clamp(min=torch.finfo(self._roots.dtype).tiny)
        self._roots.mul_((self._mean_share / mean_share).sqrt()).clamp_(-1, 1)
