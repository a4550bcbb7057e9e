"""Crops are those of torchvision, up to who draws the random numbers, and what is decoded for them is exact."""

import io
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from torchvision.transforms import v2

from tta_pipeline.data.image_bytes import read_image_header
from tta_pipeline.extras.training.augmented_pixels import as_uniform, draw_numbers, key_hashes
from tta_pipeline.extras.training.crops import NUM_DRAWS, crop_into, random_crop_box
from tta_pipeline.loading.decode import decode_rows

MIDDLE = [0.5] * NUM_DRAWS


def picture(height: int, width: int, *, seed: int = 0) -> Image.Image:
    """Return smooth random colours."""
    pixels = np.random.default_rng(seed).integers(0, 256, (9, 9, 3), np.uint8)
    return Image.fromarray(pixels).resize((width, height), Image.Resampling.BICUBIC)


def encoded(image: Image.Image, **options: object) -> bytes:
    """Return *image* as a JPEG file."""
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", **{"quality": 90, **options})
    return buffer.getvalue()


def cropped(data: bytes, kind: str, *, size: int = 32, at: list[float] = MIDDLE, is_mirrored: bool = False):
    """Return the crop of *data*, uint8 (size, size, 3)."""
    out = np.empty((size, size, 3), np.uint8)
    crop_into(data, out, kind, at, is_mirrored=is_mirrored)
    return out


@settings(max_examples=30, deadline=None)
@given(
    height=st.integers(1, 90),
    width=st.integers(1, 90),
    end=st.floats(0, 1),
    subsampling=st.sampled_from(["4:4:4", "4:2:2", "4:2:0"]),
    progressive=st.booleans(),
)
def test_rows_are_exact_where_the_rest_is_not_decoded(
    *, height: int, width: int, end: float, subsampling: str, progressive: bool
):
    """Every row above the end equals that of the whole image, whatever way the file stores its colours."""
    data = encoded(picture(height, width), subsampling=subsampling, progressive=progressive)
    last = max(1, math.ceil(height * end))

    rows = decode_rows(data, read_image_header(data), end=last)

    expected = np.asarray(Image.open(io.BytesIO(data)))
    np.testing.assert_array_equal(expected[:last], rows.pixels[:last])


def test_rows_below_the_end_are_not_decoded():
    """The decoder stops soon after the last row that is needed."""
    data = encoded(picture(400, 100))

    assert 104 == len(decode_rows(data, read_image_header(data), end=100).pixels)


@pytest.mark.parametrize(("most", "expected"), [(1.9, 1), (2, 2), (3.9, 2), (4, 4), (100, 8)])
def test_an_image_is_reduced_as_far_as_is_allowed(most: float, expected: int):
    """By 2, 4 or 8, and the reduced image is close to what Pillow makes of the whole one."""
    data = encoded(picture(336, 504))

    pixels, reduction = decode_rows(data, read_image_header(data), end=336, most_reduction=most)

    assert (expected, 336 // expected, 504 // expected) == (reduction, *pixels.shape[:2])
    whole = Image.open(io.BytesIO(data)).resize(pixels.shape[1::-1], Image.Resampling.BOX)
    assert np.abs(pixels.astype(int) - np.asarray(whole)).mean() < 2


def test_areas_are_distributed_as_those_of_torchvision():
    """Mean and deviation of each edge agree over 2,000 draws, for images of several forms."""
    for height, width in ((375, 500), (500, 300), (32, 32), (40, 400)):
        torch.manual_seed(0)
        crop = v2.RandomResizedCrop(32)
        image = torch.zeros((3, height, width))
        made = (crop.make_params([image]) for _ in range(2000))
        theirs = np.array([[one[name] for name in ("top", "left", "height", "width")] for one in made])
        numbers = as_uniform(draw_numbers(key_hashes([str(n) for n in range(2000)]), seed=0, epoch=0, count=NUM_DRAWS))
        ours = np.array([random_crop_box(height, width, own) for own in numbers.tolist()])

        error = theirs.std(0) / math.sqrt(2000)
        np.testing.assert_array_less(np.abs(ours.mean(0) - theirs.mean(0)), 5 * error + 0.01)
        np.testing.assert_allclose(theirs.std(0), ours.std(0), rtol=0.08, atol=0.1)


def test_a_full_crop_is_torchvisions_resized_crop():
    """With the same box, pixels differ from Pillow's by rounding alone."""
    image = picture(90, 120)
    data = encoded(image)
    numbers = as_uniform(draw_numbers(key_hashes(["a"]), seed=1, epoch=2, count=NUM_DRAWS))[0].tolist()
    box = random_crop_box(90, 120, numbers)

    decoded = Image.open(io.BytesIO(data)).convert("RGB")
    expected = v2.functional.resized_crop(decoded, *box, size=[32, 32])

    assert np.abs(np.asarray(expected).astype(int) - cropped(data, "full", at=numbers)).max() <= 1


def test_without_augmentation_an_image_is_prepared_as_for_evaluation():
    """Resized by its shorter side to 256/224 of the crop and cut at the centre; as it is if it has the size."""
    data = encoded(picture(50, 70))
    decoded = Image.open(io.BytesIO(data)).convert("RGB")
    expected = v2.Compose([v2.Resize(36), v2.CenterCrop(32)])(decoded)

    assert np.abs(np.asarray(expected).astype(int) - cropped(data, "none")).max() <= 1
    fitting = encoded(picture(32, 32))
    np.testing.assert_array_equal(np.asarray(Image.open(io.BytesIO(fitting))), cropped(fitting, "none"))


def test_a_simple_crop_of_an_image_of_the_size_is_that_after_padding():
    """Four black pixels around 32, and each of 81 places is a part of the padded image."""
    data = encoded(picture(32, 32))
    padded = np.pad(np.asarray(Image.open(io.BytesIO(data))), ((4, 4), (4, 4), (0, 0)))

    for top, left in ((0, 0), (8, 8), (3, 7)):
        at = [*MIDDLE[2:], (top + 0.5) / 9, (left + 0.5) / 9]
        np.testing.assert_array_equal(padded[top : top + 32, left : left + 32], cropped(data, "simple", at=at))


@pytest.mark.parametrize("kind", ["simple", "full"])
@pytest.mark.parametrize("size", [32, 90])
def test_a_mirrored_crop_is_the_mirror_image(kind: str, size: int):
    """Left and right are exchanged, and nothing else."""
    data = encoded(picture(size, size))

    np.testing.assert_array_equal(cropped(data, kind)[:, ::-1], cropped(data, kind, is_mirrored=True))


@pytest.mark.parametrize(("mode", "encoding"), [("L", "JPEG"), ("CMYK", "JPEG"), ("RGB", "PNG"), ("RGB", "WEBP")])
def test_every_encoding_is_cropped(mode: str, encoding: str):
    """What libjpeg-turbo does not convert is decoded by Pillow, and cropped like the rest."""
    buffer = io.BytesIO()
    picture(90, 120).convert(mode).save(buffer, encoding)
    decoded = Image.open(buffer).convert("RGB")
    box = random_crop_box(90, 120, MIDDLE)

    expected = v2.functional.resized_crop(decoded, *box, size=[32, 32])

    assert np.abs(np.asarray(expected).astype(int) - cropped(buffer.getvalue(), "full")).max() <= 1


@given(seed=st.integers(0, 2**63 - 1), epoch=st.integers(0, 10_000))
@settings(max_examples=20, deadline=None)
def test_draws_are_uniform_and_independent(seed: int, epoch: int):
    """Their mean, their deviation, and what neighbours have in common, over 2,000 samples."""
    numbers = as_uniform(draw_numbers(key_hashes([str(n) for n in range(2000)]), seed=seed, epoch=epoch, count=8))

    assert (numbers >= 0).all()
    assert (numbers < 1).all()
    np.testing.assert_allclose(numbers.mean(0), 0.5, atol=6 * math.sqrt(1 / 12 / 2000))
    np.testing.assert_allclose(numbers.std(0), math.sqrt(1 / 12), atol=0.02)
    correlations = np.corrcoef(numbers.T) - np.eye(8)
    assert np.abs(correlations).max() < 6 / math.sqrt(2000)
