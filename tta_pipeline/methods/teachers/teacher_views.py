"""Random views as in the code of CoTTA, RoTTA, ROID and AdaContrast.

The generator is on the device of the images, and the host never waits for the device.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import torch

from tta_pipeline.methods.augmentations import (
    crop_map,
    draw_numbers,
    draw_uniform,
    flip_maps,
    gaussian_blur,
    group_size,
    in_float32,
    resized_crop,
    rotation,
    stack_maps,
    warp,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Jitter:
    """Largest distance of each factor from 1, and largest shift of the hue as a fraction of the circle."""

    brightness: float
    contrast: float
    saturation: float
    hue: float
    gamma: float = 0.0


_COTTA_JITTER = _Jitter(brightness=0.4, contrast=0.3, saturation=0.5, hue=0.06, gamma=0.3)


_MOCO_JITTER = _Jitter(brightness=0.4, contrast=0.4, saturation=0.4, hue=0.1)


def cotta_views(images: torch.Tensor, generator: torch.Generator, *, num_views: int) -> Iterator[torch.Tensor]:
    """Yield *num_views* CoTTA views (B, 3, H, W) of all images; *generator* must be on the device of the images."""
    size = group_size(images.numel())
    for first in range(0, num_views, size):
        copies = images.repeat(min(size, num_views - first), 1, 1, 1)
        yield from torch.split(cotta_view(copies, generator), len(images))


@in_float32
def cotta_view(images: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Return CoTTA's, RoTTA's and RMT's view: colours, a small affine map, flip, slight blur and noise.

    Wang et al. 2022, "Continual test-time domain adaptation", section 3.2; constants from the authors' code. The
    authors draw once per batch, with colour steps in random order, as in `batch_views.cotta_batch_view`. Here each
    image has its own draws, and the order is fixed.
    """
    moved = _jitter_and_move(images, generator, padding="border")
    blurred = gaussian_blur(moved, draw_uniform(0.001, 0.5, len(images), generator), radius=2)
    noise = torch.empty_like(blurred).normal_(0, 0.005, generator=generator)
    return (blurred + noise).clamp(0, 1)


@in_float32
def roid_view(images: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Return ROID's and CMF's view, as in their code: CoTTA's with mirrored borders, without blur and noise."""
    return _jitter_and_move(images, generator, padding="reflection").clamp(0, 1)


@in_float32
def weak_view(images: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Return AdaContrast's weak view: a crop of 7/8 of each side (224 of 256 pixels) resized back, and a flip.

    Chen et al. 2022, "Contrastive test-time adaptation", section 3.2; constants from the authors' code.
    """
    numbers = draw_numbers(images, 3, generator)
    side = torch.full((len(images),), 7 / 8, device=images.device)
    crops = crop_map(side, side, numbers[:, 0], numbers[:, 1])
    return warp(images, flip_maps(crops, numbers[:, 2]), padding="border")


@in_float32
def moco_view(images: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Return AdaContrast's strong view: a resized crop, colours, greyscale, blur and flip.

    Chen et al. 2020, "Improved baselines with momentum contrastive learning" (MoCo v2), section 3.
    """
    numbers = draw_numbers(images, 5, generator)
    crops = resized_crop(numbers, min_area=0.2)
    view = warp(images, flip_maps(crops, numbers[:, 4]), padding="border")
    view = _apply_randomly(0.8, view, _jitter_colours(view, _MOCO_JITTER, generator), generator)
    view = _apply_randomly(0.2, view, _grey(view).expand_as(view), generator)
    return _apply_randomly(
        0.5, view, gaussian_blur(view, draw_uniform(0.1, 2, len(images), generator), radius=6), generator
    )


def _apply_randomly(
    probability: float, images: torch.Tensor, changed: torch.Tensor, generator: torch.Generator
) -> torch.Tensor:
    return torch.where(draw_uniform(0, 1, len(images), generator) < probability, changed, images)


def _jitter_and_move(
    images: torch.Tensor, generator: torch.Generator, *, padding: Literal["border", "reflection"]
) -> torch.Tensor:
    count = len(images)
    jittered = _jitter_colours(images.clamp(0, 1), _COTTA_JITTER, generator)
    a, b, c, d = rotation(draw_uniform(-1, 1, count, generator) * math.radians(15), images)
    zoom = 1 / draw_uniform(0.9, 1.1, count, generator)
    # One sixteenth of the image padded to twice its size, as in the authors' code.
    across, down = (draw_uniform(-2 / 8, 2 / 8, count, generator) for _ in range(2))
    maps = stack_maps(((a * zoom, b * zoom, across), (c * zoom, d * zoom, down)))
    return warp(jittered, flip_maps(maps, draw_numbers(images, 1, generator)[:, 0]), padding=padding)


def _grey(images: torch.Tensor) -> torch.Tensor:
    """Return the luma of ITU-R BT.601, (B, 1, H, W)."""
    red, green, blue = images.unbind(1)
    return (0.299 * red + 0.587 * green + 0.114 * blue).unsqueeze(1)


def _jitter_colours(images: torch.Tensor, jitter: _Jitter, generator: torch.Generator) -> torch.Tensor:
    def factor(amount: float) -> torch.Tensor:
        return draw_uniform(1 - amount, 1 + amount, len(images), generator)

    images = (images * factor(jitter.brightness)).clamp(0, 1)
    images = _grey(images).mean((2, 3), keepdim=True).lerp(images, factor(jitter.contrast)).clamp(0, 1)
    images = _grey(images).lerp(images, factor(jitter.saturation)).clamp(0, 1)
    images = _shift_hue(images, draw_uniform(-jitter.hue, jitter.hue, len(images), generator))
    return images.pow(factor(jitter.gamma)) if jitter.gamma else images


def _shift_hue(images: torch.Tensor, shift: torch.Tensor) -> torch.Tensor:
    """Shift the hue by *shift*, a fraction of the circle, at constant value and saturation in HSV."""
    value, largest = images.max(1, keepdim=True)
    chroma = value - images.amin(1, keepdim=True)
    # If the largest channel is c, the hue is c / 3 of the circle plus (next - next but one) / chroma.
    following = images.roll(-1, 1).gather(1, largest)
    preceding = images.roll(1, 1).gather(1, largest)
    hue = 2 * largest + (following - preceding) / chroma.clamp(min=1e-8) + 6 * shift
    # Smith 1978, "Color gamut transform pairs": each channel falls off with its distance on the circle.
    starts = 5 - 2 * torch.arange(3, device=images.device).view(1, 3, 1, 1)
    position = (starts + hue) % 6
    return value - chroma * torch.minimum(position, 4 - position).clamp(0, 1)
