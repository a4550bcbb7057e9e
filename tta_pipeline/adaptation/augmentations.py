"""Random views of images, as the methods' authors make them.

Every view takes images, float (B, 3, H, W) in [0, 1], and a generator on their device, draws independently for each
image, and returns float32 images of the same shape in [0, 1]. Whole batches are changed at once, on their
device. One affine map with bilinear interpolation does all that moves pixels in one step.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch.nn.functional import affine_grid, conv2d, grid_sample, pad

Crop = Literal["resized", "padded"]
"""Kind of crop: for ImageNet, at least 8% of the area resized to the image; for CIFAR, a shift by up to 4 pixels."""

_AUGMIX_CHAINS = 3
_AUGMIX_MAX_DEPTH = 3


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


@torch.no_grad()
def cotta_view(images: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Return the view of CoTTA, RoTTA and RMT: colours, a small affine map, flip, slight blur and noise.

    Wang et al. 2022, "Continual test-time domain adaptation", section 3.2; constants from the authors' code. They draw
    once per batch, with colour steps in random order; here each image has its own draws, in fixed order.
    """
    moved = _jittered_and_moved(images, generator, padding="border")
    blurred = _gaussian_blur(moved, _uniform(0.001, 0.5, len(images), generator), radius=2)
    noise = torch.empty_like(blurred).normal_(0, 0.005, generator=generator)
    return (blurred + noise).clamp(0, 1)


@torch.no_grad()
def roid_view(images: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Return the view of ROID and CMF, as in their code: CoTTA's with mirrored borders, without blur and noise."""
    return _jittered_and_moved(images, generator, padding="reflection").clamp(0, 1)


@torch.no_grad()
def augmix_view(images: torch.Tensor, generator: torch.Generator, *, crop: Crop) -> torch.Tensor:
    """Return the view of MEMO: a random crop and flip, mixed with three chains of one to three simple operations.

    Hendrycks et al. 2020, "AugMix", algorithm 1, of width 3 with Dirichlet(1, 1, 1) and Beta(1, 1) weights; operations
    at severity 1, as in Zhang et al. 2022, "MEMO", appendix A, with the crop that is usual for the benchmark.
    """
    count = len(images)
    crops = _resized_crop(count, generator, min_area=0.08) if crop == "resized" else _padded_crop(images, generator)
    original = _warp(images.float(), _flipped(crops, generator), padding="zeros")
    weights = torch.empty(_AUGMIX_CHAINS, count, 1, 1, 1, device=images.device).exponential_(generator=generator)
    weights /= weights.sum(0)  # Exponential variables over their sum are Dirichlet(1, ..., 1).
    mixed = torch.zeros_like(original)
    for weight in weights:
        mixed += weight * _augmix_chain(original, generator)
    share = _uniform(0, 1, count, generator)
    return share * original + (1 - share) * mixed


@torch.no_grad()
def weak_view(images: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Return AdaContrast's weak view: a crop of 7/8 of each side (224 of 256 pixels) resized back, and a flip.

    Chen et al. 2022, "Contrastive test-time adaptation", section 3.2; constants from the authors' code.
    """
    side = torch.full((len(images),), 7 / 8, device=images.device)
    return _warp(images.float(), _flipped(_crop(side, side, generator), generator), padding="border")


@torch.no_grad()
def moco_view(images: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Return AdaContrast's strong view: a resized crop, colours, greyscale, blur and flip.

    Chen et al. 2020, "Improved baselines with momentum contrastive learning" (MoCo v2), section 3.
    """
    count = len(images)
    crops = _resized_crop(count, generator, min_area=0.2)
    view = _warp(images.float(), _flipped(crops, generator), padding="border")
    view = _sometimes(0.8, view, _jittered(view, _MOCO_JITTER, generator), generator)
    view = _sometimes(0.2, view, _grey(view).expand_as(view), generator)
    return _sometimes(0.5, view, _gaussian_blur(view, _uniform(0.1, 2, count, generator), radius=6), generator)


def _uniform(low: float, high: float, count: int, generator: torch.Generator) -> torch.Tensor:
    """Return one number for each image, (count, 1, 1, 1)."""
    return torch.empty(count, 1, 1, 1, device=generator.device).uniform_(low, high, generator=generator)


def _sometimes(
    probability: float, images: torch.Tensor, changed: torch.Tensor, generator: torch.Generator
) -> torch.Tensor:
    return torch.where(_uniform(0, 1, len(images), generator) < probability, changed, images)


# Affine maps, (B, 2, 3), from points of the output to points of the input, in coordinates from -1 to 1.


def _warp(
    images: torch.Tensor, matrices: torch.Tensor, *, padding: Literal["zeros", "border", "reflection"]
) -> torch.Tensor:
    grid = affine_grid(matrices, list(images.shape), align_corners=False)
    return grid_sample(images, grid, mode="bilinear", padding_mode=padding, align_corners=False)


def _matrices(rows: tuple[tuple[torch.Tensor, ...], tuple[torch.Tensor, ...]]) -> torch.Tensor:
    return torch.stack([torch.stack([entry.flatten() for entry in row], 1) for row in rows], 1)


def _flipped(matrices: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Mirror each output left to right with probability 1/2."""
    sign = torch.where(_uniform(0, 1, len(matrices), generator).view(-1, 1) < 0.5, -1.0, 1.0)
    return torch.stack([matrices[:, :, 0] * sign, matrices[:, :, 1], matrices[:, :, 2]], 2)


def _crop(width: torch.Tensor, height: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Return the map of a random crop with *width* and *height* as fractions of the sides, (B,) each, to full size."""
    count = len(width)
    nothing = torch.zeros_like(width)
    across = _uniform(-1, 1, count, generator).flatten() * (1 - width)
    down = _uniform(-1, 1, count, generator).flatten() * (1 - height)
    return _matrices(((width, nothing, across), (nothing, height, down)))


def _resized_crop(count: int, generator: torch.Generator, *, min_area: float) -> torch.Tensor:
    """Return the crop of Szegedy et al. 2015, "Going deeper with convolutions", section 6: aspect ratio 3/4 to 4/3."""
    area = _uniform(min_area, 1, count, generator).flatten()
    ratio = _uniform(math.log(3 / 4), math.log(4 / 3), count, generator).flatten().exp()
    return _crop((area * ratio).sqrt().clamp(max=1), (area / ratio).sqrt().clamp(max=1), generator)


def _padded_crop(images: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    shifts = torch.randint(-4, 5, (2, len(images)), device=images.device, generator=generator)
    one = torch.ones(len(images), device=images.device)
    across, down = 2 * shifts[0] / images.shape[3], 2 * shifts[1] / images.shape[2]
    return _matrices(((one, 0 * one, across), (0 * one, one, down)))


def _rotation(angle: torch.Tensor, images: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Return the four entries of a rotation in pixel space, in coordinates from -1 to 1."""
    aspect = images.shape[2] / images.shape[3]
    return angle.cos(), angle.sin() * aspect, -angle.sin() / aspect, angle.cos()


def _jittered_and_moved(
    images: torch.Tensor, generator: torch.Generator, *, padding: Literal["border", "reflection"]
) -> torch.Tensor:
    count = len(images)
    jittered = _jittered(images.float().clamp(0, 1), _COTTA_JITTER, generator)
    a, b, c, d = _rotation(_uniform(-1, 1, count, generator) * math.radians(15), images)
    zoom = 1 / _uniform(0.9, 1.1, count, generator)
    # One sixteenth of the image padded to twice its size, as in the authors' code.
    across, down = (_uniform(-2 / 8, 2 / 8, count, generator) for _ in range(2))
    matrices = _matrices(((a * zoom, b * zoom, across), (c * zoom, d * zoom, down)))
    return _warp(jittered, _flipped(matrices, generator), padding=padding)


# Colours.


def _grey(images: torch.Tensor) -> torch.Tensor:
    """Return the luma of ITU-R BT.601, (B, 1, H, W)."""
    red, green, blue = images.unbind(1)
    return (0.299 * red + 0.587 * green + 0.114 * blue).unsqueeze(1)


def _jittered(images: torch.Tensor, jitter: _Jitter, generator: torch.Generator) -> torch.Tensor:
    def factor(amount: float) -> torch.Tensor:
        return _uniform(1 - amount, 1 + amount, len(images), generator)

    images = (images * factor(jitter.brightness)).clamp(0, 1)
    images = _grey(images).mean((2, 3), keepdim=True).lerp(images, factor(jitter.contrast)).clamp(0, 1)
    images = _grey(images).lerp(images, factor(jitter.saturation)).clamp(0, 1)
    images = _shifted_hue(images, _uniform(-jitter.hue, jitter.hue, len(images), generator))
    return images.pow(factor(jitter.gamma)) if jitter.gamma else images


def _shifted_hue(images: torch.Tensor, shift: torch.Tensor) -> torch.Tensor:
    """Shift the hue by *shift*, a fraction of the circle, at constant value and saturation in HSV."""
    value, largest = images.max(1, keepdim=True)
    chroma = value - images.amin(1, keepdim=True)
    # Where the largest channel is c, the hue lies (next - next but one) / chroma beside c / 3 of the circle.
    following = images.roll(-1, 1).gather(1, largest)
    preceding = images.roll(1, 1).gather(1, largest)
    hue = 2 * largest + (following - preceding) / chroma.clamp(min=1e-8) + 6 * shift
    # Smith 1978, "Color gamut transform pairs": each channel falls off with its distance on the circle.
    starts = torch.tensor([5.0, 3.0, 1.0], device=images.device).view(1, 3, 1, 1)
    position = (starts + hue) % 6
    return value - chroma * torch.minimum(position, 4 - position).clamp(0, 1)


def _gaussian_blur(images: torch.Tensor, sigma: torch.Tensor, *, radius: int) -> torch.Tensor:
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


def _augmix_chain(images: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Apply one to three operations, drawn for each image, in sequence."""
    shape, device = (_AUGMIX_MAX_DEPTH, len(images)), images.device
    chosen = torch.randint(len(_OPERATIONS), shape, generator=generator, device=device)
    depth = torch.randint(1, _AUGMIX_MAX_DEPTH + 1, shape[1:], generator=generator, device=device)
    levels = torch.empty(shape, device=device).uniform_(0.01, 0.1, generator=generator)
    levels *= torch.randint(2, shape, generator=generator, device=device) * 2 - 1
    steps = torch.arange(_AUGMIX_MAX_DEPTH, device=device).unsqueeze(1)
    images = images.clone()
    # The host knows the choice, so that each operation runs only on its own images.
    for step, choice in enumerate(chosen.masked_fill(steps >= depth, -1).tolist()):
        for number, operation in enumerate(_OPERATIONS):
            rows = [row for row, name in enumerate(choice) if name == number]
            if rows:
                images[rows] = operation(images[rows], levels[step, rows].view(-1, 1, 1, 1))
    return images


def _affine(images: torch.Tensor, **entries: torch.Tensor) -> torch.Tensor:
    """Move pixels by the map [[a, b, across], [c, d, down]], whose omitted entries are those of the identity."""
    nothing = torch.zeros(len(images), device=images.device)
    names = (("a", "b", "across"), ("c", "d", "down"))
    rows = [[entries.get(name, nothing + (name in "ad")) for name in row] for row in names]
    return _warp(images, _matrices((tuple(rows[0]), tuple(rows[1]))), padding="zeros")


def _rotated(images: torch.Tensor, level: torch.Tensor) -> torch.Tensor:
    a, b, c, d = _rotation(level * math.radians(30), images)
    return _affine(images, a=a, b=b, c=c, d=d)


def _sheared_across(images: torch.Tensor, level: torch.Tensor) -> torch.Tensor:
    return _affine(images, b=level * 0.3)


def _sheared_down(images: torch.Tensor, level: torch.Tensor) -> torch.Tensor:
    return _affine(images, c=level * 0.3)


def _shifted_across(images: torch.Tensor, level: torch.Tensor) -> torch.Tensor:
    return _affine(images, across=level * 2 / 3)


def _shifted_down(images: torch.Tensor, level: torch.Tensor) -> torch.Tensor:
    return _affine(images, down=level * 2 / 3)


def _solarized(images: torch.Tensor, level: torch.Tensor) -> torch.Tensor:
    return torch.where(images >= 1 - level.abs(), 1 - images, images)


def _posterized(images: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
    """Keep the upper four of eight bits."""
    return (images * 255 / 16).floor() * 16 / 255


def _autocontrast(images: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
    """Stretch each channel to [0, 1]; a constant channel stays unchanged."""
    low, high = images.amin((2, 3), keepdim=True), images.amax((2, 3), keepdim=True)
    return torch.where(high > low, (images - low) / (high - low).clamp(min=1e-8), images)


def _equalized(images: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
    """Spread the 256 levels of each channel so that all are about equally frequent; a constant channel stays."""
    levels = (images * 255).round().long().clamp(0, 255).flatten(2)
    counts = torch.zeros(*levels.shape[:2], 256, device=images.device)
    counts.scatter_add_(2, levels, torch.ones_like(levels, dtype=counts.dtype))
    below = counts.cumsum(2) - counts
    span = below.gather(2, levels.amax(2, keepdim=True))
    spread = (below / span.clamp(min=1)).clamp(max=1).gather(2, levels).view_as(images)
    return torch.where(span.unsqueeze(3) > 0, spread, images)


_OPERATIONS: tuple[Callable[[torch.Tensor, torch.Tensor], torch.Tensor], ...] = (
    _autocontrast, _equalized, _posterized, _solarized, _rotated, _sheared_across, _sheared_down, _shifted_across,
    _shifted_down,
)  # fmt: skip
