"""Random views of images, as the methods' authors make them.

Every view takes images, float (B, 3, H, W) in [0, 1], and a generator, draws independently for each image, and returns
float32 images of the same shape in [0, 1], computed in float32 under autocast too. Whole batches are changed at once,
on their device, and the host never waits for the device. All steps that move pixels are one affine map with bilinear
interpolation.

The generator is on the device of the images. For AugMix it is on the host: the draws decide which operation runs on
which image, and the host must know this before it can submit any work.

`augmix_views` and `cotta_views` draw many views of images in groups: a small image keeps a device busy for less time
than the host needs to submit its work.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import Concatenate, Literal, NamedTuple, ParamSpec

import torch
from torch.nn.functional import conv2d, grid_sample, pad

Crop = Literal["resized", "padded"]
"""Kind of crop: for ImageNet, at least 8% of the area resized to the image; for CIFAR, a shift by up to 4 pixels."""

_AUGMIX_CHAINS = 3
_AUGMIX_MAX_DEPTH = 3
_AUGMIX_NUMBERS = [1, _AUGMIX_CHAINS, _AUGMIX_CHAINS, *[_AUGMIX_CHAINS * _AUGMIX_MAX_DEPTH] * 2, 5]
"""Numbers drawn for a view: share of the original, weights and depths of the chains, their operations and levels, crop
and flip."""

_GROUP_BYTES = 2**25
"""Largest number of bytes of views that are drawn at once, except where one image, or one view of a batch, has more.

Larger groups need more memory and gain nothing: on an accelerator, work on this many bytes already takes longer than
its submission. The limit is the same on every device, since the draws of CoTTA depend on it.
"""

_Settings = ParamSpec("_Settings")
_View = Callable[Concatenate[torch.Tensor, _Settings], torch.Tensor]


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


def in_float32(view: _View[_Settings]) -> _View[_Settings]:
    """Make *view* compute without gradients and in float32, even under autocast."""

    @wraps(view)
    def exact(images: torch.Tensor, /, *args: _Settings.args, **kwargs: _Settings.kwargs) -> torch.Tensor:
        with torch.no_grad(), torch.autocast(images.device.type, enabled=False):
            return view(images.float(), *args, **kwargs)

    return exact


def augmix_views(
    images: torch.Tensor, generator: torch.Generator, *, num_views: int, crop: Crop
) -> Iterator[torch.Tensor]:
    """Yield the *num_views* AugMix views (V, 3, H, W) of each image; *generator* must be on the host.

    The views are the same as if `augmix_view` drew them for one image after the other, however images are grouped.
    """
    yield from _views_of_each(images, num_views, lambda copies: augmix_view(copies, generator, crop=crop))


def crop_views(images: torch.Tensor, generator: torch.Generator, *, num_views: int) -> Iterator[torch.Tensor]:
    """Yield the *num_views* crops (V, 3, H, W) of each image; *generator* must be on the host.

    The crops are the same as if `crop_view` drew them for one image after the other, however images are grouped.
    """
    yield from _views_of_each(images, num_views, lambda copies: crop_view(copies, generator))


def _views_of_each(
    images: torch.Tensor, num_views: int, view: Callable[[torch.Tensor], torch.Tensor]
) -> Iterator[torch.Tensor]:
    for group in torch.split(images, _group_size(num_views * images[0].numel())):
        copies = group.unsqueeze(1).expand(-1, num_views, -1, -1, -1).flatten(0, 1)
        yield from torch.split(view(copies), num_views)


def cotta_views(images: torch.Tensor, generator: torch.Generator, *, num_views: int) -> Iterator[torch.Tensor]:
    """Yield *num_views* CoTTA views (B, 3, H, W) of all images; *generator* must be on the device of the images."""
    group_size = _group_size(images.numel())
    for first in range(0, num_views, group_size):
        copies = images.repeat(min(group_size, num_views - first), 1, 1, 1)
        yield from torch.split(cotta_view(copies, generator), len(images))


def _group_size(numbers_each: int) -> int:
    """Return how many items to draw at once, if the views of each item have *numbers_each* float32 numbers."""
    return max(1, _GROUP_BYTES // (4 * numbers_each))


@in_float32
def cotta_view(images: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Return the view of CoTTA, RoTTA and RMT: colours, a small affine map, flip, slight blur and noise.

    Wang et al. 2022, "Continual test-time domain adaptation", section 3.2; constants from the authors' code. The
    authors draw once per batch, with colour steps in random order, as in `batch_views.cotta_batch_view`. Here each
    image has its own draws, and the order is fixed.
    """
    moved = _jitter_and_move(images, generator, padding="border")
    blurred = gaussian_blur(moved, _draw_uniform(0.001, 0.5, len(images), generator), radius=2)
    noise = torch.empty_like(blurred).normal_(0, 0.005, generator=generator)
    return (blurred + noise).clamp(0, 1)


@in_float32
def roid_view(images: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Return the view of ROID and CMF, as in their code: CoTTA's with mirrored borders, without blur and noise."""
    return _jitter_and_move(images, generator, padding="reflection").clamp(0, 1)


@in_float32
def augmix_view(images: torch.Tensor, generator: torch.Generator, *, crop: Crop) -> torch.Tensor:
    """Return the view of MEMO: a random crop and flip, mixed with three chains of one to three simple operations.

    Hendrycks et al. 2020, "AugMix", algorithm 1, of width 3 with Dirichlet(1, 1, 1) and Beta(1, 1) weights; operations
    at severity 1, as in Zhang et al. 2022, "MEMO", appendix A, with the crop that is usual for the benchmark.

    *generator* must be on the host. All numbers for a view are drawn in a row, so that views are the same on every
    device, and for any number of views drawn at once.
    """
    numbers = torch.rand(len(images), sum(_AUGMIX_NUMBERS), generator=generator)
    share, weights, depths, choices, levels, crops = torch.split(numbers, _AUGMIX_NUMBERS, 1)
    weights = -torch.log1p(-weights)  # Exponential variables over their sum are Dirichlet(1, ..., 1).
    weights = (1 - share) * weights / weights.sum(1, keepdim=True)
    map_of_crop = _resized_crop(crops, min_area=0.08) if crop == "resized" else _padded_crop(crops, images)
    parts = [part for part in _chain_parts(depths, choices, levels, images) if len(part.rows)]

    rows = copy_to_device([part.rows for part in parts], images.device)
    maps, share, weights, *settings = copy_to_device(
        [_flip_maps(map_of_crop, crops[:, 4]), _per_image(share), _per_image(weights.T)]
        + [part.arguments for part in parts],
        images.device,
    )
    original = warp(images, maps, padding="zeros")
    chains = original.repeat(_AUGMIX_CHAINS, 1, 1, 1)
    for part, its_rows, its_settings in zip(parts, rows, settings, strict=True):
        chains.index_copy_(0, its_rows, part.operation(chains.index_select(0, its_rows), its_settings))
    chains *= weights
    return chains.view(_AUGMIX_CHAINS, *original.shape).sum(0).addcmul_(share, original)


@in_float32
def crop_view(images: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Return the view of the methods for CLIP: a crop of at least 8 % of the area, resized to the image, and a flip.

    *generator* must be on the host, so that views are the same on every device.
    """
    numbers = torch.rand(len(images), 5, generator=generator)
    (maps,) = copy_to_device([_flip_maps(_resized_crop(numbers, min_area=0.08), numbers[:, 4])], images.device)
    return warp(images, maps, padding="border")


@in_float32
def weak_view(images: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Return AdaContrast's weak view: a crop of 7/8 of each side (224 of 256 pixels) resized back, and a flip.

    Chen et al. 2022, "Contrastive test-time adaptation", section 3.2; constants from the authors' code.
    """
    numbers = _draw_numbers(images, 3, generator)
    side = torch.full((len(images),), 7 / 8, device=images.device)
    crops = _crop(side, side, numbers[:, 0], numbers[:, 1])
    return warp(images, _flip_maps(crops, numbers[:, 2]), padding="border")


@in_float32
def moco_view(images: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Return AdaContrast's strong view: a resized crop, colours, greyscale, blur and flip.

    Chen et al. 2020, "Improved baselines with momentum contrastive learning" (MoCo v2), section 3.
    """
    numbers = _draw_numbers(images, 5, generator)
    crops = _resized_crop(numbers, min_area=0.2)
    view = warp(images, _flip_maps(crops, numbers[:, 4]), padding="border")
    view = _apply_randomly(0.8, view, _jitter_colours(view, _MOCO_JITTER, generator), generator)
    view = _apply_randomly(0.2, view, _grey(view).expand_as(view), generator)
    return _apply_randomly(
        0.5, view, gaussian_blur(view, _draw_uniform(0.1, 2, len(images), generator), radius=6), generator
    )


def _draw_uniform(low: float, high: float, count: int, generator: torch.Generator) -> torch.Tensor:
    """Return one number for each image, (count, 1, 1, 1)."""
    return torch.empty(count, 1, 1, 1, device=generator.device).uniform_(low, high, generator=generator)


def _draw_numbers(images: torch.Tensor, count: int, generator: torch.Generator) -> torch.Tensor:
    """Return *count* numbers from 0 to 1 for each image, (B, count)."""
    return torch.rand(len(images), count, device=generator.device, generator=generator)


def _scale_to_range(low: float, high: float, numbers: torch.Tensor) -> torch.Tensor:
    """Spread *numbers* from 0 to 1 over the range from *low* to *high*."""
    return low + (high - low) * numbers


def _apply_randomly(
    probability: float, images: torch.Tensor, changed: torch.Tensor, generator: torch.Generator
) -> torch.Tensor:
    return torch.where(_draw_uniform(0, 1, len(images), generator) < probability, changed, images)


# Affine maps, (B, 2, 3), from points of the output to points of the input, in coordinates from -1 to 1.


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


def _stack_maps(rows: tuple[tuple[torch.Tensor, ...], tuple[torch.Tensor, ...]]) -> torch.Tensor:
    return torch.stack([torch.stack([entry.flatten() for entry in row], 1) for row in rows], 1)


def _flip_maps(maps: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
    """Mirror an output left to right if its number of *numbers* (B,), from 0 to 1, is below 1/2."""
    sign = torch.where(numbers < 0.5, -1.0, 1.0).unsqueeze(1)
    return torch.stack([maps[:, :, 0] * sign, maps[:, :, 1], maps[:, :, 2]], 2)


def _crop(width: torch.Tensor, height: torch.Tensor, across: torch.Tensor, down: torch.Tensor) -> torch.Tensor:
    """Return the map that enlarges a crop to full size; all arguments are (B,).

    *width* and *height* are fractions of the sides. *across* and *down*, from 0 to 1, say where the crop lies.
    """
    nothing = torch.zeros_like(width)
    return _stack_maps(
        ((width, nothing, (2 * across - 1) * (1 - width)), (nothing, height, (2 * down - 1) * (1 - height)))
    )


def _resized_crop(numbers: torch.Tensor, *, min_area: float) -> torch.Tensor:
    """Return the crop of Szegedy et al. 2015, "Going deeper with convolutions", section 6: aspect ratio 3/4 to 4/3.

    The crop depends on the first four of each image's *numbers*, from 0 to 1.
    """
    area = _scale_to_range(min_area, 1, numbers[:, 0])
    ratio = _scale_to_range(math.log(3 / 4), math.log(4 / 3), numbers[:, 1]).exp()
    width, height = (area * ratio).sqrt().clamp(max=1), (area / ratio).sqrt().clamp(max=1)
    return _crop(width, height, numbers[:, 2], numbers[:, 3])


def _padded_crop(numbers: torch.Tensor, images: torch.Tensor) -> torch.Tensor:
    """Return a shift by -4 to 4 whole pixels in both directions, set by the first two of *numbers*, from 0 to 1."""
    across, down = ((numbers[:, :2] * 9).floor() - 4).unbind(1)
    one, nothing = torch.ones_like(across), torch.zeros_like(across)
    return _stack_maps(((one, nothing, 2 * across / images.shape[3]), (nothing, one, 2 * down / images.shape[2])))


def _rotation(angle: torch.Tensor, images: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Return the four entries of a rotation in pixel space, in coordinates from -1 to 1."""
    aspect = images.shape[2] / images.shape[3]
    return angle.cos(), angle.sin() * aspect, -angle.sin() / aspect, angle.cos()


def _jitter_and_move(
    images: torch.Tensor, generator: torch.Generator, *, padding: Literal["border", "reflection"]
) -> torch.Tensor:
    count = len(images)
    jittered = _jitter_colours(images.clamp(0, 1), _COTTA_JITTER, generator)
    a, b, c, d = _rotation(_draw_uniform(-1, 1, count, generator) * math.radians(15), images)
    zoom = 1 / _draw_uniform(0.9, 1.1, count, generator)
    # One sixteenth of the image padded to twice its size, as in the authors' code.
    across, down = (_draw_uniform(-2 / 8, 2 / 8, count, generator) for _ in range(2))
    maps = _stack_maps(((a * zoom, b * zoom, across), (c * zoom, d * zoom, down)))
    return warp(jittered, _flip_maps(maps, _draw_numbers(images, 1, generator)[:, 0]), padding=padding)


# Colours.


def _grey(images: torch.Tensor) -> torch.Tensor:
    """Return the luma of ITU-R BT.601, (B, 1, H, W)."""
    red, green, blue = images.unbind(1)
    return (0.299 * red + 0.587 * green + 0.114 * blue).unsqueeze(1)


def _jitter_colours(images: torch.Tensor, jitter: _Jitter, generator: torch.Generator) -> torch.Tensor:
    def factor(amount: float) -> torch.Tensor:
        return _draw_uniform(1 - amount, 1 + amount, len(images), generator)

    images = (images * factor(jitter.brightness)).clamp(0, 1)
    images = _grey(images).mean((2, 3), keepdim=True).lerp(images, factor(jitter.contrast)).clamp(0, 1)
    images = _grey(images).lerp(images, factor(jitter.saturation)).clamp(0, 1)
    images = _shift_hue(images, _draw_uniform(-jitter.hue, jitter.hue, len(images), generator))
    return images.pow(factor(jitter.gamma)) if jitter.gamma else images


def _shift_hue(images: torch.Tensor, shift: torch.Tensor) -> torch.Tensor:
    """Shift the hue by *shift*, a fraction of the circle, at constant value and saturation in HSV."""
    value, largest = images.max(1, keepdim=True)
    chroma = value - images.amin(1, keepdim=True)
    # Where the largest channel is c, the hue lies (next - next but one) / chroma beside c / 3 of the circle.
    following = images.roll(-1, 1).gather(1, largest)
    preceding = images.roll(1, 1).gather(1, largest)
    hue = 2 * largest + (following - preceding) / chroma.clamp(min=1e-8) + 6 * shift
    # Smith 1978, "Color gamut transform pairs": each channel falls off with its distance on the circle.
    starts = 5 - 2 * torch.arange(3, device=images.device).view(1, 3, 1, 1)
    position = (starts + hue) % 6
    return value - chroma * torch.minimum(position, 4 - position).clamp(0, 1)


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


# AugMix: operations on images (B, 3, H, W) at levels (B, 1, 1, 1) from -0.1 to 0.1, severity 1.


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
    signed = signed.sign() * _scale_to_range(0.01, 0.1, signed.abs())
    for its_chosen, its_levels in zip(chosen, signed, strict=True):
        for number, operation in enumerate(_ON_VALUES):
            rows = (its_chosen == number).nonzero().flatten()
            yield _Part(operation, rows, _per_image(its_levels[rows]))
        rows = (its_chosen >= len(_ON_VALUES)).nonzero().flatten()
        yield _Part(_move_pixels, rows, _affine_maps(its_chosen[rows], its_levels[rows], images))


def _per_image(numbers: torch.Tensor) -> torch.Tensor:
    """Return *numbers*, one for each image, in the shape (B, 1, 1, 1)."""
    return numbers.reshape(-1, 1, 1, 1)


def copy_to_device(tensors: Sequence[torch.Tensor], device: torch.device) -> list[torch.Tensor]:
    """Copy the host's *tensors*, of one dtype, to *device* at once, without a wait of the host."""
    sizes = [each.numel() for each in tensors]
    copies_by_itself = device.type != "cpu" and hasattr(getattr(torch, device.type, None), "Stream")
    packed = torch.empty(sum(sizes), dtype=tensors[0].dtype, pin_memory=copies_by_itself)
    torch.cat([each.flatten() for each in tensors], out=packed)
    parts = torch.split(packed.to(device, non_blocking=copies_by_itself), sizes)
    return [part.view(each.shape) for part, each in zip(parts, tensors, strict=True)]


def _affine_maps(chosen: torch.Tensor, levels: torch.Tensor, images: torch.Tensor) -> torch.Tensor:
    """Return the map of each chosen operation that moves pixels; *chosen* and *levels* are (B,)."""

    def level_of(operation: int) -> torch.Tensor:
        return levels.where(chosen == operation, 0)

    a, b, c, d = _rotation(level_of(_ROTATED) * math.radians(30), images)
    sheared_across, sheared_down = (level_of(operation) * 0.3 for operation in (_SHEARED_ACROSS, _SHEARED_DOWN))
    across, down = (level_of(operation) * 2 / 3 for operation in (_SHIFTED_ACROSS, _SHIFTED_DOWN))
    return _stack_maps(((a, b + sheared_across, across), (c + sheared_down, d, down)))


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
    """Spread the 256 levels of each channel so that all are about equally frequent; a constant channel stays."""
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
