"""AugMix's random views of an image.

The generator is on the host: the draws decide which operation runs on which image, and the host must know this before
it can submit any work. Views are drawn in groups, see `augmentations`.
"""

import math
from collections.abc import Callable, Iterator
from typing import Literal, NamedTuple

import torch

from tta_pipeline.methods.augmentations import (
    copy_to_device,
    flip_maps,
    in_float32,
    resized_crop,
    rotation,
    scale_to_range,
    stack_maps,
    views_of_each,
    warp,
)

Crop = Literal["resized", "padded"]
"""Kind of crop: for ImageNet, at least 8% of the area resized to the image; for CIFAR, a shift by up to 4 pixels."""


_AUGMIX_CHAINS = 3


_AUGMIX_MAX_DEPTH = 3


_AUGMIX_NUMBERS = [1, _AUGMIX_CHAINS, _AUGMIX_CHAINS, *[_AUGMIX_CHAINS * _AUGMIX_MAX_DEPTH] * 2, 5]
"""Numbers drawn for a view: share of the original, weights and depths of the chains, their operations and levels, crop
and flip."""


def augmix_views(
    images: torch.Tensor, generator: torch.Generator, *, num_views: int, crop: Crop
) -> Iterator[torch.Tensor]:
    """Yield the *num_views* AugMix views (V, 3, H, W) of each image; *generator* must be on the host.

    The views are the same as if `augmix_view` drew them for one image after the other, however images are grouped.
    """
    yield from views_of_each(images, num_views, lambda copies: augmix_view(copies, generator, crop=crop))


@in_float32
def augmix_view(images: torch.Tensor, generator: torch.Generator, *, crop: Crop) -> torch.Tensor:
    """Return MEMO's view: a random crop and flip, mixed with three chains of one to three simple operations.

    Hendrycks et al. 2020, "AugMix", algorithm 1, of width 3 with Dirichlet(1, 1, 1) and Beta(1, 1) weights; operations
    at severity 1, as in Zhang et al. 2022, "MEMO", appendix A, with the benchmark's usual crop.

    *generator* must be on the host. All numbers for a view are drawn in a row, so that views are the same on every
    device, and for any number of views drawn at once.
    """
    numbers = torch.rand(len(images), sum(_AUGMIX_NUMBERS), generator=generator)
    share, weights, depths, choices, levels, crops = torch.split(numbers, _AUGMIX_NUMBERS, 1)
    weights = -torch.log1p(-weights)  # Exponential variables over their sum are Dirichlet(1, ..., 1).
    weights = (1 - share) * weights / weights.sum(1, keepdim=True)
    map_of_crop = resized_crop(crops, min_area=0.08) if crop == "resized" else _padded_crop(crops, images)
    parts = [part for part in _chain_parts(depths, choices, levels, images) if len(part.rows)]

    rows = copy_to_device([part.rows for part in parts], images.device)
    maps, share, weights, *settings = copy_to_device(
        [flip_maps(map_of_crop, crops[:, 4]), _per_image(share), _per_image(weights.T)]
        + [part.arguments for part in parts],
        images.device,
    )
    original = warp(images, maps, padding="zeros")
    chains = original.repeat(_AUGMIX_CHAINS, 1, 1, 1)
    for part, its_rows, its_settings in zip(parts, rows, settings, strict=True):
        chains.index_copy_(0, its_rows, part.operation(chains.index_select(0, its_rows), its_settings))
    chains *= weights
    return chains.view(_AUGMIX_CHAINS, *original.shape).sum(0).addcmul_(share, original)


def _padded_crop(numbers: torch.Tensor, images: torch.Tensor) -> torch.Tensor:
    """Return a shift by -4 to 4 whole pixels in both directions, set by the first two of *numbers*, from 0 to 1."""
    across, down = ((numbers[:, :2] * 9).floor() - 4).unbind(1)
    one, nothing = torch.ones_like(across), torch.zeros_like(across)
    return stack_maps(((one, nothing, 2 * across / images.shape[3]), (nothing, one, 2 * down / images.shape[2])))


class _Part(NamedTuple):
    """One operation on some of the images, in one step of their chains; tensors are on the host."""

    operation: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
    rows: torch.Tensor
    """Indices of the images, int64 (N,)."""
    arguments: torch.Tensor
    """Second argument of the operation, float32 (N, ...): levels or maps."""


def _chain_parts(
    depths: torch.Tensor, choices: torch.Tensor, levels: torch.Tensor, images: torch.Tensor
) -> Iterator[_Part]:
    """Yield, in order, the parts of chains of one to three operations.

    *depths* (B, chains), *choices* and *levels* (B, chains x steps) are numbers from 0 to 1. Rows number the B images
    for the first chain, then for the next.
    """

    def by_step(numbers: torch.Tensor) -> torch.Tensor:
        return numbers.view(-1, _AUGMIX_CHAINS, _AUGMIX_MAX_DEPTH).permute(2, 1, 0).flatten(1)

    steps = torch.arange(_AUGMIX_MAX_DEPTH).unsqueeze(1)
    has_ended = steps >= 1 + (depths.T.flatten() * _AUGMIX_MAX_DEPTH).floor()
    chosen = (by_step(choices) * _NUM_OPERATIONS).long().masked_fill(has_ended, -1)
    signed = 2 * by_step(levels) - 1
    signed = signed.sign() * scale_to_range(0.01, 0.1, signed.abs())
    for its_chosen, its_levels in zip(chosen, signed, strict=True):
        for number, operation in enumerate(_ON_VALUES):
            rows = (its_chosen == number).nonzero().flatten()
            yield _Part(operation, rows, _per_image(its_levels[rows]))
        rows = (its_chosen >= len(_ON_VALUES)).nonzero().flatten()
        yield _Part(_move_pixels, rows, _affine_maps(its_chosen[rows], its_levels[rows], images))


def _per_image(numbers: torch.Tensor) -> torch.Tensor:
    """Return *numbers*, one for each image, in the shape (B, 1, 1, 1)."""
    return numbers.reshape(-1, 1, 1, 1)


def _affine_maps(chosen: torch.Tensor, levels: torch.Tensor, images: torch.Tensor) -> torch.Tensor:
    """Return the map of each chosen operation that moves pixels; *chosen* and *levels* are (B,)."""

    def level_of(operation: int) -> torch.Tensor:
        return levels.where(chosen == operation, 0)

    a, b, c, d = rotation(level_of(_ROTATED) * math.radians(30), images)
    sheared_across, sheared_down = (level_of(operation) * 0.3 for operation in (_SHEARED_ACROSS, _SHEARED_DOWN))
    across, down = (level_of(operation) * 2 / 3 for operation in (_SHIFTED_ACROSS, _SHIFTED_DOWN))
    return stack_maps(((a, b + sheared_across, across), (c + sheared_down, d, down)))


def _move_pixels(images: torch.Tensor, maps: torch.Tensor) -> torch.Tensor:
    return warp(images, maps, padding="zeros")


def _solarize(images: torch.Tensor, level: torch.Tensor) -> torch.Tensor:
    return torch.where(images >= 1 - level.abs(), 1 - images, images)


def _posterize(images: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
    """Keep the upper four of eight bits."""
    return (images * 255 / 16).floor() * 16 / 255


def _autocontrast(images: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
    """Stretch each channel to [0, 1]; a constant channel stays unchanged."""
    low, high = images.amin((2, 3), keepdim=True), images.amax((2, 3), keepdim=True)
    return torch.where(high > low, (images - low) / (high - low).clamp(min=1e-8), images)


def _equalize(images: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
    """Spread the 256 levels of each channel so that all are about equally frequent; constant channels do not change."""
    levels = (images * 255).round().long().clamp(0, 255).flatten(2)
    counts = torch.zeros(*levels.shape[:2], 256, device=images.device)
    counts.scatter_add_(2, levels, torch.ones_like(levels, dtype=counts.dtype))
    below = counts.cumsum(2) - counts
    span = below.gather(2, levels.amax(2, keepdim=True))
    spread = (below / span.clamp(min=1)).clamp(max=1).gather(2, levels).view_as(images)
    return torch.where(span.unsqueeze(3) > 0, spread, images)


_ON_VALUES = (_autocontrast, _equalize, _posterize, _solarize)


_ROTATED, _SHEARED_ACROSS, _SHEARED_DOWN, _SHIFTED_ACROSS, _SHIFTED_DOWN = range(len(_ON_VALUES), len(_ON_VALUES) + 5)


_NUM_OPERATIONS = len(_ON_VALUES) + 5
"""Number of operations: first the operations on values, then those that move pixels, which differ only in their map."""
