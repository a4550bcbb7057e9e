"""Random crops of an image, mirrored or not, as prompt tuning for CLIP makes them."""

from collections.abc import Iterator

import torch

from tta_pipeline.methods.augmentations import copy_to_device, flip_maps, in_float32, resized_crop, views_of_each, warp


def crop_views(images: torch.Tensor, generator: torch.Generator, *, num_views: int) -> Iterator[torch.Tensor]:
    """Yield the *num_views* crops (V, 3, H, W) of each image; *generator* must be on the host.

    The crops are the same as if `crop_view` drew them for one image after the other, however images are grouped.
    """
    yield from views_of_each(images, num_views, lambda copies: crop_view(copies, generator))


def skip_views(num_images: int, generator: torch.Generator, *, num_views: int) -> None:
    """Draw the numbers of *num_views* crops of each of *num_images* images, without making the crops."""
    _draw(num_images * num_views, generator)


@in_float32
def crop_view(images: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Return the CLIP methods' view: a crop of at least 8 % of the area, resized to the image, and a flip.

    *generator* must be on the host, so that views are the same on every device.
    """
    numbers = _draw(len(images), generator)
    (maps,) = copy_to_device([flip_maps(resized_crop(numbers, min_area=0.08), numbers[:, 4])], images.device)
    return warp(images, maps, padding="border")


def _draw(num_crops: int, generator: torch.Generator) -> torch.Tensor:
    """Return the numbers of crops and flips, from 0 to 1, (num_crops, 5)."""
    return torch.rand(num_crops, 5, generator=generator)
