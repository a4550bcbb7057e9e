"""Parts of random views of images: affine maps, crops, blur, and draws.

Every view takes images, float (B, 3, H, W) in [0, 1], and a generator, draws independently for each image, and returns
float32 images of the same shape in [0, 1], computed in float32 under autocast too. Whole batches are changed at once,
on their device. All steps that move pixels are one affine map with bilinear interpolation.

Views are drawn in groups: a single small image keeps a device busy for less time than the host needs to submit the
work.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from functools import wraps
from typing import Concatenate, Literal, ParamSpec

import torch
from torch.nn.functional import conv2d, grid_sample, pad

_GROUP_BYTES = 2**25
"""Largest number of bytes of views that are drawn at once, unless a single image, or one view of a batch, needs more.

Larger groups need more memory and gain nothing: on an accelerator, work on this many bytes already takes longer than
its submission. The limit is the same on every device, since the draws of CoTTA depend on it.
"""


_Settings = ParamSpec("_Settings")


_View = Callable[Concatenate[torch.Tensor, _Settings], torch.Tensor]


def in_float32(view: _View[_Settings]) -> _View[_Settings]:
    """Make *view* compute without gradients and in float32, even under autocast."""

    @wraps(view)
    def exact(images: torch.Tensor, /, *args: _Settings.args, **kwargs: _Settings.kwargs) -> torch.Tensor:
        with torch.no_grad(), torch.autocast(images.device.type, enabled=False):
            return view(images.float(), *args, **kwargs)

    return exact


def views_of_each(
    images: torch.Tensor, num_views: int, view: Callable[[torch.Tensor], torch.Tensor]
) -> Iterator[torch.Tensor]:
    """Yield (*num_views*, 3, H, W) for each of *images*; *view* changes copies of several images at once."""
    for group in torch.split(images, group_size(num_views * images[0].numel())):
        copies = group.unsqueeze(1).expand(-1, num_views, -1, -1, -1).flatten(0, 1)
        yield from torch.split(view(copies), num_views)


def group_size(numbers_each: int) -> int:
    """Return how many items to draw at once, if the views of each item have *numbers_each* float32 numbers."""
    return max(1, _GROUP_BYTES // (4 * numbers_each))


def draw_uniform(low: float, high: float, count: int, generator: torch.Generator) -> torch.Tensor:
    """Return one number for each image, (count, 1, 1, 1)."""
    return torch.empty(count, 1, 1, 1, device=generator.device).uniform_(low, high, generator=generator)


def draw_numbers(images: torch.Tensor, count: int, generator: torch.Generator) -> torch.Tensor:
    """Return *count* numbers from 0 to 1 for each image, (B, count)."""
    return torch.rand(len(images), count, device=generator.device, generator=generator)


def scale_to_range(low: float, high: float, numbers: torch.Tensor) -> torch.Tensor:
    """Spread *numbers* from 0 to 1 over the range from *low* to *high*."""
    return low + (high - low) * numbers


def warp(
    images: torch.Tensor, maps: torch.Tensor, *, padding: Literal["zeros", "border", "reflection"]
) -> torch.Tensor:
    """Move pixels; unlike `affine_grid`, without a matrix product, which may be rounded to fewer bits."""
    height, width = images.shape[2:]
    along_x, along_y, offset = maps[:, None, None].unbind(-1)  # (B, 1, 1, 2) each
    rows = along_y * _centres(height, images.device).view(-1, 1, 1) + offset
    points = along_x * _centres(width, images.device).view(-1, 1) + rows
    return grid_sample(images, points, mode="bilinear", padding_mode=padding, align_corners=False)


def _centres(length: int, device: torch.device) -> torch.Tensor:
    """Return the centres of the pixels of a side, (length,)."""
    return (torch.arange(length, device=device) * 2 + (1 - length)) / length


def stack_maps(rows: tuple[tuple[torch.Tensor, ...], tuple[torch.Tensor, ...]]) -> torch.Tensor:
    """Return affine maps (B, 2, 3) from their *rows* of entries, each with B elements."""
    return torch.stack([torch.stack([entry.flatten() for entry in row], 1) for row in rows], 1)


def flip_maps(maps: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
    """Mirror an output left to right if its number of *numbers* (B,), from 0 to 1, is below 1/2."""
    sign = torch.where(numbers < 0.5, -1.0, 1.0).unsqueeze(1)
    return torch.stack([maps[:, :, 0] * sign, maps[:, :, 1], maps[:, :, 2]], 2)


def crop_map(width: torch.Tensor, height: torch.Tensor, across: torch.Tensor, down: torch.Tensor) -> torch.Tensor:
    """Return the map that enlarges a crop to full size; all arguments are (B,).

    *width* and *height* are fractions of the sides. *across* and *down*, from 0 to 1, are the position of the crop.
    """
    nothing = torch.zeros_like(width)
    return stack_maps(
        ((width, nothing, (2 * across - 1) * (1 - width)), (nothing, height, (2 * down - 1) * (1 - height)))
    )


def resized_crop(numbers: torch.Tensor, *, min_area: float) -> torch.Tensor:
    """Return the crop of Szegedy et al. 2015, "Going deeper with convolutions", section 6: aspect ratio 3/4 to 4/3.

    The crop depends on the first four of each image's *numbers*, from 0 to 1.
    """
    area = scale_to_range(min_area, 1, numbers[:, 0])
    ratio = scale_to_range(math.log(3 / 4), math.log(4 / 3), numbers[:, 1]).exp()
    width, height = (area * ratio).sqrt().clamp(max=1), (area / ratio).sqrt().clamp(max=1)
    return crop_map(width, height, numbers[:, 2], numbers[:, 3])


def rotation(angle: torch.Tensor, images: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Return the four entries of a rotation in pixel space, in coordinates from -1 to 1."""
    aspect = images.shape[2] / images.shape[3]
    return angle.cos(), angle.sin() * aspect, -angle.sin() / aspect, angle.cos()


def gaussian_blur(images: torch.Tensor, sigma: torch.Tensor, *, radius: int) -> torch.Tensor:
    """Blur each image by its own *sigma*, (B, 1, 1, 1) in pixels."""
    count, channels, height, width = images.shape
    offsets = torch.arange(-radius, radius + 1, device=images.device)
    kernels = (-offsets.square() / (2 * sigma.view(-1, 1).square())).softmax(1).repeat_interleave(channels, 0)
    planes = images.reshape(1, count * channels, height, width)
    planes = pad(planes, (radius, radius, radius, radius), mode="replicate")
    planes = conv2d(planes, kernels[:, None, None, :], groups=count * channels)
    planes = conv2d(planes, kernels[:, None, :, None], groups=count * channels)
    return planes.view_as(images)


def copy_to_device(tensors: Sequence[torch.Tensor], device: torch.device) -> list[torch.Tensor]:
    """Copy the host's *tensors*, of one dtype, to *device* at once, without a wait of the host."""
    sizes = [each.numel() for each in tensors]
    copies_by_itself = device.type != "cpu" and hasattr(getattr(torch, device.type, None), "Stream")
    packed = torch.empty(sum(sizes), dtype=tensors[0].dtype, pin_memory=copies_by_itself)
    torch.cat([each.flatten() for each in tensors], out=packed)
    parts = torch.split(packed.to(device, non_blocking=copies_by_itself), sizes)
    return [part.view(each.shape) for part, each in zip(parts, tensors, strict=True)]
