"""Random views with one draw for a whole batch, as in the authors' code of CoTTA, RoTTA, RMT, ROID and CMF.

Each view takes images and a generator, like the views in `augmentations`. The difference is that each random number is
drawn once and used for all images; only the noise is drawn for each pixel. Numbers are drawn in the order of the
authors' code, starting with the order of the colour steps, so that the same seed gives the authors' view. The generator
is therefore on the host for every device. The noise is drawn on the host too, which takes most of the time for large
images. The host never waits for the device.

The image is padded to twice its size, moved by whole pixels, blurred and cropped. The views in `augmentations` do this
in fewer steps and differ at the border; their colour steps are in fixed order.
"""

import math
from collections.abc import Callable
from typing import Literal

import torch
from torch.nn.functional import pad
from torchvision.transforms import functional as colour

from tta_pipeline.methods.augmentations import copy_to_device, gaussian_blur, in_float32, warp

_BLUR_RADIUS = 2


def _adjust_gamma(images: torch.Tensor, factor: float) -> torch.Tensor:
    adjusted: torch.Tensor = colour.adjust_gamma(images.clamp(1e-8, 1), factor)
    return adjusted


_COLOUR_STEPS: tuple[tuple[Callable[[torch.Tensor, float], torch.Tensor], float, float], ...] = (
    (colour.adjust_brightness, 0.6, 1.4),
    (colour.adjust_contrast, 0.7, 1.3),
    (colour.adjust_saturation, 0.5, 1.5),
    (colour.adjust_hue, -0.06, 0.06),
    (_adjust_gamma, 0.7, 1.3),
)
"""Functions that change the colours, each with the range of its factor."""


@in_float32
def cotta_batch_view(images: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Return the view of CoTTA, RoTTA and RMT, the same for all images; *generator* is the host's."""
    moved = _jitter_and_move(images, generator, padding="replicate")
    sigma = torch.tensor([_draw_uniform(0.001, 0.5, generator)])
    is_mirrored = torch.rand(1, generator=generator).item() < 0.5
    sigma, noise = copy_to_device([sigma, torch.randn(images.shape, generator=generator)], images.device)
    middle = _crop_middle(gaussian_blur(moved, sigma.expand(len(images)), radius=_BLUR_RADIUS), images)
    return ((middle.flip(3) if is_mirrored else middle) + 0.005 * noise).clamp(0, 1)


@in_float32
def roid_batch_view(images: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Return the view of ROID and CMF, the same for all images; *generator* is the host's."""
    middle = _crop_middle(_jitter_and_move(images, generator, padding="reflect"), images)
    is_mirrored = torch.rand(1, generator=generator).item() < 0.5
    return (middle.flip(3) if is_mirrored else middle).clamp(0, 1)


def _draw_uniform(low: float, high: float, generator: torch.Generator) -> float:
    return torch.empty(1).uniform_(low, high, generator=generator).item()


def _jitter_and_move(
    images: torch.Tensor, generator: torch.Generator, *, padding: Literal["replicate", "reflect"]
) -> torch.Tensor:
    """Return *images* in other colours, padded to twice their size, turned, zoomed and shifted."""
    images = images.clamp(0, 1)
    for step in torch.randperm(len(_COLOUR_STEPS), generator=generator).tolist():
        change, low, high = _COLOUR_STEPS[step]
        images = change(images, _draw_uniform(low, high, generator))
    top, left = images.shape[2] // 2, images.shape[3] // 2
    padded = pad(images, (left, left, top, top), mode=padding)
    (maps,) = copy_to_device([_draw_map(padded, generator)], images.device)
    return warp(padded, maps.expand(len(images), -1, -1), padding="zeros")


def _draw_map(images: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Return the map (1, 2, 3) of a turn by at most 15 degrees, a shift by whole pixels, and a zoom."""
    height, width = images.shape[2:]
    angle = math.radians(_draw_uniform(-15, 15, generator))
    across, down = (round(_draw_uniform(-side / 16, side / 16, generator)) for side in (width, height))
    zoom = _draw_uniform(0.9, 1.1, generator)
    cosine, sine = math.cos(angle) / zoom, math.sin(angle) / zoom
    shift_across, shift_down = -cosine * across - sine * down, sine * across - cosine * down
    rows = (
        (cosine, sine * height / width, 2 * shift_across / width),
        (-sine * width / height, cosine, 2 * shift_down / height),
    )
    return torch.tensor([rows])


def _crop_middle(padded: torch.Tensor, images: torch.Tensor) -> torch.Tensor:
    """Return the middle of *padded*, cropped to the size of *images*."""
    height, width = images.shape[2:]
    return padded[:, :, height // 2 :, width // 2 :][:, :, :height, :width]
