"""Random crops of images, taken while the images are decoded.

The distributions equal torchvision.transforms.v2's. Its classes are not used, since they draw from torch's global
generator, which all threads share. Tests compare the two.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from tta_pipeline.benchmarks.training_recipe import Augmentation
from tta_pipeline.data.image_bytes import ImageHeader, read_image_header
from tta_pipeline.loading.decode import decode_into, decode_rows

NUM_DRAWS = 22
"""Number of uniform numbers that a crop may need: area and ratio of ten tries, and two for its position."""
RESIZED_BY = 256 / 224
"""Shorter side of the resized image divided by the side of the crop, for crops without random scale; ImageNet's."""
_TRIES = 10
_AREA, _RATIO = (0.08, 1.0), (3 / 4, 4 / 3)
_PADDED_BY = 8
_SPARE = 2
"""Least factor by which an image must still be shrunk after libjpeg-turbo has reduced it while decoding. As in Pillow's
thumbnails, the result then hardly differs from resizing the full image."""


class Box(NamedTuple):
    """A rectangle in an image, in pixels."""

    top: int
    left: int
    height: int
    width: int


def random_crop_box(height: int, width: int, draws: Sequence[float]) -> Box:
    """Return a box with 8 to 100 % of the area and an aspect ratio of 3/4 to 4/3, as `RandomResizedCrop` does.

    Args:
        height: Height of the image in pixels.
        width: Width of the image in pixels.
        draws: 22 numbers in [0, 1).
    """
    low, high = math.log(_RATIO[0]), math.log(_RATIO[1])
    for number in range(_TRIES):
        area = height * width * (_AREA[0] + (_AREA[1] - _AREA[0]) * draws[2 * number])
        ratio = math.exp(low + (high - low) * draws[2 * number + 1])
        box_width, box_height = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < box_width <= width and 0 < box_height <= height:
            top, left = _place(draws[-2:], height - box_height, width - box_width)
            return Box(top, left, box_height, box_width)
    # The image is too wide or too high for these ratios: take its centre.
    if width < height * _RATIO[0]:
        box_width, box_height = width, round(width / _RATIO[0])
    elif width > height * _RATIO[1]:
        box_width, box_height = round(height * _RATIO[1]), height
    else:
        box_width, box_height = width, height
    return Box((height - box_height) // 2, (width - box_width) // 2, box_height, box_width)


def crop_into(
    data: bytes, out: npt.NDArray[np.uint8], kind: Augmentation, draws: Sequence[float], *, is_mirrored: bool
) -> None:
    """Write a crop of the image file *data* into *out*.

    Args:
        data: Image file of any size.
        out: Pixels, uint8 (S, S, 3), RGB.
        kind: Kind of crop.
        draws: 22 numbers in [0, 1).
        is_mirrored: Whether to flip the crop horizontally.

    Raises:
        ValueError: *data* is not an image, or is damaged.
    """
    header = read_image_header(data)
    if kind == "full":
        pixels = _crop_random_area(data, header, len(out), draws)
    elif (header.height, header.width) != out.shape[:2]:
        pixels = _resize_and_crop(data, header, len(out), draws[-2:] if kind == "simple" else None)
    elif kind == "simple":
        pixels = _pad_and_crop(data, header, len(out), draws[-2:])
    else:
        decode_into(data, out)
        return
    # With torch, which flips pixels of three bytes in a tenth of numpy's time.
    out[...] = torch.flip(pixels, (1,)).numpy() if is_mirrored else pixels.numpy()


def _crop_random_area(data: bytes, header: ImageHeader, size: int, draws: Sequence[float]) -> torch.Tensor:
    box = random_crop_box(header.height, header.width, draws)
    end, most_reduction = box.top + box.height, min(box.height, box.width) / size / _SPARE
    pixels, reduction = decode_rows(data, header, end=end, most_reduction=most_reduction)
    top, left, bottom, right = (edge // reduction for edge in (box.top, box.left, end, box.left + box.width))
    return _resize(pixels[top:bottom, left:right], size, size)


def _resize_and_crop(data: bytes, header: ImageHeader, size: int, draws: Sequence[float] | None) -> torch.Tensor:
    """Resize the image by its shorter side, and return a crop at a random position, or at the centre."""
    shorter, scaled = min(header.height, header.width), int(size * RESIZED_BY)
    height, width = (int(scaled * side / shorter) for side in (header.height, header.width))
    pixels, _ = decode_rows(data, header, end=header.height, most_reduction=shorter / scaled / _SPARE)
    if draws is None:
        top, left = round((height - size) / 2), round((width - size) / 2)
    else:
        top, left = _place(draws, height - size, width - size)
    return _resize(pixels, height, width)[top : top + size, left : left + size]


def _pad_and_crop(data: bytes, header: ImageHeader, size: int, draws: Sequence[float]) -> torch.Tensor:
    """Pad the image with black edges, and return a crop at a random position."""
    edge = size // _PADDED_BY
    padded = np.zeros((size + 2 * edge, size + 2 * edge, 3), np.uint8)
    padded[edge : edge + size, edge : edge + size] = decode_rows(data, header, end=size).pixels
    top, left = _place(draws, 2 * edge, 2 * edge)
    return torch.from_numpy(padded[top : top + size, left : left + size])


def _place(draws: Sequence[float], most_down: int, most_right: int) -> tuple[int, int]:
    down, right = draws
    return math.floor(down * (most_down + 1)), math.floor(right * (most_right + 1))


def _resize(pixels: npt.NDArray[np.uint8], height: int, width: int) -> torch.Tensor:
    """Return *pixels* resized as torchvision's Resize does: bilinear, antialiased.

    Torch takes a third of Pillow's time, lets other threads run, and differs from Pillow by at most one level of
    brightness.
    """
    owned = pixels if pixels.flags.writeable else pixels.copy()  # torch warns about read-only memory
    images = torch.from_numpy(owned)[None].permute(0, 3, 1, 2)
    resized = torch.nn.functional.interpolate(images, size=(height, width), mode="bilinear", antialias=True)
    return resized[0].permute(1, 2, 0)
