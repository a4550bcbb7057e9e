"""Random views: valid images, drawn for each image, by the generator alone, and moved as far as they should be."""

import colorsys
import math
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageOps
from torchvision.transforms import functional as reference
from torchvision.transforms.functional import pil_to_tensor, to_pil_image

from tta_pipeline.adaptation import augmentations
from tta_pipeline.adaptation.augmentations import augmix_view, cotta_view, moco_view, roid_view, weak_view

VIEWS = {
    "cotta": cotta_view,
    "roid": roid_view,
    "weak": weak_view,
    "moco": moco_view,
    "augmix resized": partial(augmix_view, crop="resized"),
    "augmix padded": partial(augmix_view, crop="padded"),
}


def smooth(*, count: int = 4, size: int = 24) -> torch.Tensor:
    """Return smooth images (count, 3, size, size)."""
    coarse = torch.rand(count, 3, 4, 4, generator=torch.Generator().manual_seed(0))
    return torch.nn.functional.interpolate(coarse, size=(size, size), mode="bilinear")


def generator(seed: int = 0) -> torch.Generator:
    """Return a seeded generator."""
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
@settings(max_examples=8, deadline=None)
@given(
    seed=st.integers(0, 2**32), count=st.integers(1, 5), size=st.tuples(st.integers(8, 33), st.integers(8, 33)),
    value=st.sampled_from([0.0, 0.3, 1.0, None]), dtype=st.sampled_from([torch.float32, torch.float16]),
)  # fmt: skip
def test_views_are_images_of_the_same_shape(view, *, seed, count, size, value, dtype):
    """Any batch of any size, plain colours and half precision included, gives finite float32 images in [0, 1]."""
    images = torch.rand(count, 3, *size) if value is None else torch.full((count, 3, *size), value)
    found = view(images.to(dtype), generator(seed))

    assert images.shape == found.shape
    assert torch.float32 == found.dtype
    assert found.isfinite().all()
    assert ((found >= 0) & (found <= 1 + 1e-6)).all()


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
def test_the_generator_alone_decides(view):
    """Same generator, same view, bit for bit; each image has draws of its own; the image is not written to."""
    images = smooth(count=1).repeat(6, 1, 1, 1)
    before, state = images.clone(), torch.get_rng_state()
    first = view(images, generator(1))

    assert torch.equal(first, view(images, generator(1)))
    assert not torch.equal(first, view(images, generator(2)))
    assert len({row.numpy().tobytes() for row in first}) > 1
    assert torch.equal(before, images)
    assert torch.equal(state, torch.get_rng_state())


@settings(max_examples=40, deadline=None)
@given(colour=st.tuples(*[st.integers(0, 255)] * 3), shift=st.floats(-0.5, 0.5))
def test_hue_turns_as_in_hsv(colour: tuple[int, int, int], shift: float):
    """A colour's hue moves on the circle while value and saturation stay."""
    hue, saturation, value = colorsys.rgb_to_hsv(*(c / 255 for c in colour))
    expected = colorsys.hsv_to_rgb((hue + shift) % 1, saturation, value)
    pixel = torch.tensor(colour).view(1, 3, 1, 1) / 255
    found = augmentations._shifted_hue(pixel, torch.tensor(shift).view(1, 1, 1, 1))

    torch.testing.assert_close(torch.tensor(expected), found.flatten(), rtol=0, atol=1e-5)


def test_blur_is_gaussian():
    """Each image is blurred by its own width, as torchvision does it away from the borders."""
    images, sigma = smooth(), [0.001, 0.3, 0.5, 2.0]
    found = augmentations._gaussian_blur(images, torch.tensor(sigma).view(-1, 1, 1, 1), radius=6)
    expected = torch.stack([reference.gaussian_blur(i, [13, 13], [s, s]) for i, s in zip(images, sigma, strict=True)])

    torch.testing.assert_close(expected[..., 6:-6, 6:-6], found[..., 6:-6, 6:-6], rtol=0, atol=1e-5)


def test_rotation_is_in_pixels():
    """An oblong image is turned and not sheared."""
    images = torch.zeros(1, 3, 20, 40)
    images[..., 10:, :] = 1
    found = augmentations._rotated(images, torch.tensor(0.1).view(1, 1, 1, 1))
    angle = math.degrees(0.1 * math.radians(30))
    expected = reference.rotate(images, -angle, interpolation=reference.InterpolationMode.BILINEAR)
    mirrored = reference.rotate(images, angle, interpolation=reference.InterpolationMode.BILINEAR)

    inner = (..., slice(4, -4), slice(4, -4))
    assert min((found - other)[inner].abs().max() for other in (expected, mirrored)) < 1e-4


@pytest.mark.parametrize(
    ("operation", "expected", "tolerance"),
    [
        (augmentations._posterized, lambda image: ImageOps.posterize(image, 4), 1e-6),
        (augmentations._solarized, lambda image: ImageOps.solarize(image, 230), 1e-6),
        (augmentations._autocontrast, ImageOps.autocontrast, 1.5 / 255),
        (augmentations._equalized, ImageOps.equalize, 4 / 255),
    ],
)
def test_operations_on_values_are_those_of_pillow(operation, expected, tolerance: float):
    """Images of whole levels come out as AugMix has them, but for rounding."""
    levels = (smooth(size=256) * 255).round()
    images = [to_pil_image(image.byte()) for image in levels]
    wanted = torch.stack([pil_to_tensor(expected(image)) for image in images]).float() / 255
    found = operation(levels / 255, torch.full((4, 1, 1, 1), 25.5 / 255))

    assert isinstance(images[0], Image.Image)
    torch.testing.assert_close(wanted, found, rtol=0, atol=tolerance)


def test_a_padded_crop_shifts_by_up_to_four_pixels():
    """What comes in at the border is black, every shift occurs, and none is larger."""
    point = torch.zeros(400, 3, 21, 21)
    point[:, :, 10, 10] = 1
    crops = augmentations._padded_crop(point, generator())
    moved = augmentations._warp(point, crops, padding="zeros")[:, 0]
    places = [divmod(int(row.argmax()), 21) for row in moved]

    torch.testing.assert_close(torch.ones(400), moved.amax((1, 2)), rtol=0, atol=1e-4)
    assert {6, 7, 8, 9, 10, 11, 12, 13, 14} == {row for row, _ in places} == {column for _, column in places}


def test_half_of_the_views_are_mirrored():
    """A gradient from left to right runs the other way in about every other weak view."""
    ramp = torch.linspace(0, 1, 32).expand(400, 3, 32, 32)
    views = weak_view(ramp, generator())
    mirrored = (views[:, 0, 0, 0] > views[:, 0, 0, -1]).float().mean()

    assert 0.4 < mirrored < 0.6
