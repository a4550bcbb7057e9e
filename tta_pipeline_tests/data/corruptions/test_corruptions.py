"""The corruptions do what their formulas say, and to an image always the same."""

import colorsys
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from scipy import ndimage

from tta_pipeline.data.corruptions import TABLES, corrupt, dispatch, weather
from tta_pipeline.data.corruptions.blur import disk, drag, glass_blur
from tta_pipeline.data.corruptions.constants import CONSTANTS, PARAMETERS
from tta_pipeline.data.corruptions.dispatch import FUNCTIONS, is_random
from tta_pipeline.data.corruptions.frost import ICE_TEXTURES, frost_textures
from tta_pipeline.data.corruptions.geometry import clipped_zoom
from tta_pipeline.data.corruptions.randomness import generators
from tta_pipeline.data.corruptions.spatter import TURQUOISE, _equalise_histogram, _water, canny
from tta_pipeline.data.corruptions.weather import plasma_fractal
from tta_pipeline.data.images.generated_encoding import GENERATOR_VERSION
from tta_pipeline.errors import ImagesError
from tta_pipeline_tests.conftest import run_python
from tta_pipeline_tests.imagenet_c import CORRUPTIONS, SEVERITIES

Images = npt.NDArray[np.uint8]

KEYS = ("ant/1", "bee/2", "cat/3")

GROWING = (
    "gaussian_noise",
    "shot_noise",
    "impulse_noise",
    "defocus_blur",
    "zoom_blur",
    "brightness",
    "contrast",
    "pixelate",
    "jpeg_compression",
    "speckle_noise",
    "gaussian_blur",
)
"""Corruptions whose every severity must lie further from the clean image; the others trade one constant for another."""


def photos(count: int = 3, height: int = 32, width: int = 32) -> Images:
    """Smooth colourful images that use the whole range of values."""
    noise = np.random.default_rng(0).standard_normal((count, height, width, 3))
    smooth = ndimage.gaussian_filter(noise, 2, axes=(1, 2))
    images: Images = np.clip(128 + 60 * smooth / smooth.std(), 0, 255).astype(np.uint8)
    return images


def grey(value: int, side: int = 64) -> Images:
    """One image of a single grey."""
    return np.full((1, side, side, 3), value, dtype=np.uint8)


def corrupted(images: Images, corruption: str, severity: int, **changes: object) -> Images:
    """Corrupt with the arguments most tests share."""
    arguments = {"keys": KEYS[: len(images)], "seed": 0, "table": "cifar_c"} | changes
    return corrupt(images, corruption, severity, **arguments)  # type: ignore[arg-type]


def squared_distance(images: Images, others: Images) -> float:
    """Mean squared distance of the values."""
    return float(np.mean((images.astype(float) - others) ** 2))


@pytest.mark.parametrize("severity", [1, 5])
@pytest.mark.parametrize("corruption", CORRUPTIONS)
def test_an_image_does_not_depend_on_its_batch(corruption: str, severity: int) -> None:
    """Batch, position and repetition leave every byte as it is, and the input is not written to."""
    images = photos()
    images.flags.writeable = False
    together = corrupted(images, corruption, severity)
    reverse = corrupted(images[::-1], corruption, severity, keys=KEYS[::-1])
    alone = [corrupted(images[i : i + 1], corruption, severity, keys=KEYS[i : i + 1]) for i in range(3)]
    assert together.shape == images.shape
    assert together.dtype == np.uint8
    np.testing.assert_array_equal(together, reverse[::-1])
    np.testing.assert_array_equal(together, np.concatenate(alone))


@given(
    corruption=st.sampled_from(CORRUPTIONS),
    severity=st.sampled_from(SEVERITIES),
    count=st.integers(1, 5),
    height=st.integers(16, 40),
    width=st.integers(16, 40),
    seed=st.integers(0, 2**31),
    table=st.sampled_from(TABLES),
)
@settings(max_examples=80, deadline=None, derandomize=True)
def test_batch_independence_holds_at_any_size(
    *, corruption: str, severity: int, count: int, height: int, width: int, seed: int, table: str
) -> None:
    """The last image of a batch is what it is alone, whatever the sizes, the seed and the table."""
    images, keys = photos(count, height, width), [f"key {i}" for i in range(count)]
    together = corrupt(images, corruption, severity, keys=keys, seed=seed, table=table)
    alone = corrupt(images[-1:], corruption, severity, keys=keys[-1:], seed=seed, table=table)
    np.testing.assert_array_equal(together[-1:], alone)


@pytest.mark.parametrize("corruption", CORRUPTIONS)
def test_pieces_of_a_batch_join_without_a_seam(corruption: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Working image by image gives what working on the whole batch gives."""
    whole = corrupted(photos(), corruption, 3)
    monkeypatch.setattr(dispatch, "PIXELS_AT_ONCE", 1)
    np.testing.assert_array_equal(corrupted(photos(), corruption, 3), whole)


def test_threads_do_not_matter() -> None:
    """Corruptions that run at the same time do not disturb each other."""
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda corruption: corrupted(photos(), corruption, 4), CORRUPTIONS))
    for corruption, result in zip(CORRUPTIONS, results, strict=True):
        np.testing.assert_array_equal(result, corrupted(photos(), corruption, 4))


DISTANCES = {
    "imagenet_c": """
        36.7 40.79 15.81 28.47 23.37 36.37 15.71 74.02 68.33 42.72 39.58 35.7 51.09 14.91 21.45
        31.85 23.43 8.87 37.49
    """,
    "tiny_imagenet_c": """
        22.08 19.83 7.63 7.21 16.19 16.95 14.1 60.08 49.33 29.66 39.58 35.7 34.22 7.42 13.42 23.87
        6.64 5.27 37.49
    """,
    "cifar_c": """
        14.6 12.57 4.56 2.66 14.6 15.63 14.1 30.49 43.42 24.48 24.76 26.21 23.12 5.01 11.68 12.56
        3.51 3.74 33.31
    """,
    "digits": """
        41.62 53.49 13.92 28.36 26.51 37.36 37.51 57.35 55.15 24.48 37.1 22.86 37.83 20.46
        30.36 51.66 26.19 25.41 31.42
    """,
}
"""In levels of 255, of version 2 of the generator: how far each corruption takes eight images, in its order."""


@pytest.mark.parametrize("table", TABLES)
def test_another_image_is_another_version(table: str) -> None:
    """Whoever changes a distance raises GENERATOR_VERSION: nothing else says that images must be made again."""
    images, keys = photos(8), [str(number) for number in range(8)]
    found = [
        np.mean([
            np.abs(corrupt(images, name, severity, keys=keys, seed=0, table=table).astype(float) - images).mean()
            for severity in SEVERITIES
        ])
        for name in CORRUPTIONS
    ]  # fmt: skip

    assert (2, pytest.approx([float(distance) for distance in DISTANCES[table].split()], abs=0.015)) == (
        GENERATOR_VERSION,
        found,
    )


MADE = """
import hashlib
import numpy as np
from scipy import ndimage
from tta_pipeline_tests.imagenet_c import CORRUPTIONS
from tta_pipeline.data.corruptions import corrupt
from tta_pipeline.data.images.generated_encoding import Encoding
noise = np.random.default_rng(5).standard_normal((1, 224, 224, 3))
images = np.clip(128 + 800 * ndimage.gaussian_filter(noise, 14, axes=(1, 2)), 0, 255).astype(np.uint8)
for name in CORRUPTIONS:
    made = corrupt(images, name, 3, keys=["a"], seed=0, table="imagenet_c")
    print(name, hashlib.sha256(Encoding(jpeg_quality=85).encode(made[0]) + made.tobytes()).hexdigest())
"""


def test_processors_with_other_vector_instructions_make_the_same() -> None:
    """Without the instructions of today's processors NumPy and libjpeg-turbo make the same bytes, at 224 pixels."""
    found = np.show_config(mode="dicts")["SIMD Extensions"].get("found", [])
    older = {"NPY_DISABLE_CPU_FEATURES": " ".join(found), "JSIMD_FORCENONE": "1"}

    here = run_python(MADE).stdout.splitlines()
    there = subprocess.run(
        [sys.executable, "-c", MADE], env={**os.environ, **older}, capture_output=True, text=True, check=True
    ).stdout.splitlines()

    assert 19 == len(here)
    assert here == there


@pytest.mark.parametrize("corruption", [name for name in FUNCTIONS if is_random(name)])
def test_keys_and_seeds_decide_the_randomness(corruption: str) -> None:
    """Equal images with different keys, or with the same key and another seed, come out different."""
    images = np.repeat(photos(1, 64, 64), 2, axis=0)
    first, second = corrupted(images, corruption, 5)
    reseeded = corrupted(images[:1], corruption, 5, seed=1)[0]
    assert (first != second).any()
    assert (first != reseeded).any()


def test_seeds_outlive_the_process() -> None:
    """A generator is a function of the four facts alone, in every process and on every machine."""
    (rng,) = generators(["ant/1"], seed=0, corruption="snow", severity=1)
    assert rng.integers(2**32) == 1229712253


@pytest.mark.parametrize("corruption", CORRUPTIONS)
def test_images_need_not_be_square(corruption: str) -> None:
    """A 96 x 224 image and the smallest one keep their shape under the strongest constants."""
    for images in (photos(1, 96, 224), photos(1, 224, 96), photos(1, 16, 16), photos(1, 16, 50)):
        result = corrupted(images, corruption, 5, table="imagenet_c")
        assert result.shape == images.shape
        assert (result != images).any()


@pytest.mark.parametrize("severity", SEVERITIES)
@pytest.mark.parametrize("corruption", CORRUPTIONS)
def test_tiny_images_have_their_own_table(corruption: str, severity: int) -> None:
    """Every cell of tiny_imagenet_c changes a 64 x 64 image and keeps its shape."""
    result = corrupted(photos(1, 64, 64), corruption, severity, table="tiny_imagenet_c")
    assert result.shape == (1, 64, 64, 3)
    assert (result != photos(1, 64, 64)).any()


@pytest.mark.parametrize("corruption", CORRUPTIONS)
@pytest.mark.parametrize("value", [0, 255])
def test_black_and_white_images_are_no_special_case(corruption: str, value: int) -> None:
    """Nothing divides by the missing contrast or colour: no warning, which would be an error here."""
    for severity in SEVERITIES:
        assert corrupted(grey(value, side=16), corruption, severity).shape == (1, 16, 16, 3)


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("corruption", GROWING)
def test_severity_grows(corruption: str, table: str) -> None:
    """Each severity is further from the clean image than the one before."""
    images = photos(3, 64, 64)
    distances = [squared_distance(images, corrupted(images, corruption, s, table=table)) for s in SEVERITIES]
    assert distances == sorted(distances)
    assert distances[0] < distances[-1]


@pytest.mark.parametrize("table", TABLES)
def test_tables_are_complete(table: str) -> None:
    """Every table has five rows of the named parameters for each of the 19 corruptions, and each has a function."""
    assert set(CONSTANTS[table]) == set(PARAMETERS) == set(CORRUPTIONS) == set(FUNCTIONS)
    for corruption, rows in CONSTANTS[table].items():
        assert len(rows) == len(SEVERITIES)
        assert {len(row) for row in rows} == {len(PARAMETERS[corruption])}


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"corruption": "rain"}, ("'rain'", str(len(CORRUPTIONS)), "gaussian_noise")),
        ({"severity": 6}, ("6", "1, 2, 3, 4, 5")),
        ({"table": "mnist_c"}, ("'mnist_c'", *TABLES)),
        ({"images": photos().astype(np.float32)}, ("float32", "uint8")),
        ({"images": photos()[0]}, ("(32, 32, 3)", "(N, H, W, 3)")),
        ({"images": photos(3, 15, 32)}, ("(3, 15, 32, 3)", "16")),
        ({"keys": KEYS[:2]}, ("2 keys", "3 images")),
    ],
)
def test_errors_name_what_was_found_and_what_is_possible(changes: dict[str, object], named: tuple[str, ...]) -> None:
    """A wrong argument is quoted together with the choices."""
    arguments = {"images": photos(), "corruption": "fog", "severity": 1, "keys": KEYS, "seed": 0, "table": "cifar_c"}
    with pytest.raises(ImagesError) as error:
        corrupt(**(arguments | changes))  # type: ignore[arg-type]
    assert all(words in str(error.value) for words in named)


def test_no_images_are_fine() -> None:
    """An empty batch comes back empty."""
    assert corrupted(photos()[:0], "snow", 1, keys=()).shape == (0, 32, 32, 3)


@pytest.mark.parametrize("severity", SEVERITIES)
def test_gaussian_noise_has_its_standard_deviation(severity: int) -> None:
    """On middle grey, where little is clipped, the noise has the scale of the table."""
    (scale,) = CONSTANTS["cifar_c"]["gaussian_noise"][severity - 1]
    noisy = corrupted(grey(128, side=128), "gaussian_noise", severity)
    assert noisy.std() / 255 == pytest.approx(scale, rel=0.02)
    assert noisy.mean() == pytest.approx(127.5, abs=0.5)


def test_shot_noise_has_the_variance_of_a_count() -> None:
    """On middle grey the variance is the mean over the number of photons that white stands for."""
    noisy = corrupted(grey(128, side=128), "shot_noise", 1) / 255
    assert noisy.mean() == pytest.approx(128 / 255, abs=0.005)
    assert noisy.var() == pytest.approx(128 / 255 / 500, rel=0.05)


def test_impulse_noise_strikes_its_share() -> None:
    """Half of the share becomes black, half white, and everything else stays."""
    noisy = corrupted(grey(128, side=128), "impulse_noise", 5, table="imagenet_c")
    shares = [float(np.mean(noisy == value)) for value in (0, 128, 255)]
    assert shares == pytest.approx([0.135, 0.73, 0.135], abs=0.01)


def test_speckle_noise_is_proportional() -> None:
    """Black has no noise, and a grey half as bright as another has half its noise."""
    assert (corrupted(grey(0), "speckle_noise", 5) == 0).all()
    dark, light = (corrupted(grey(value, side=128), "speckle_noise", 3).std() for value in (64, 128))
    assert dark / light == pytest.approx(0.5, rel=0.03)


def test_gaussian_blur_is_the_gaussian_filter() -> None:
    """Each channel is filtered with repeated edges, then truncated to whole numbers."""
    expected = ndimage.gaussian_filter(photos() / 255, (0, 0.8, 0.8, 0), mode="nearest") * 255
    assert_truncated(corrupted(photos(), "gaussian_blur", 4), expected)


def test_defocus_blur_is_a_convolution_with_a_disk() -> None:
    """The Fourier transform gives what the direct sum over the disk gives."""
    kernel = disk(6, alias_blur=0.5)[np.newaxis].astype(np.float64)
    expected = ndimage.convolve(photos().astype(np.float64), kernel, mode="mirror")
    assert_truncated(corrupted(photos(), "defocus_blur", 3, table="imagenet_c"), expected)


def test_disks_have_their_radius() -> None:
    """A disk of radius 3 has 29 cells of equal weight if its edge is not softened."""
    assert np.count_nonzero(disk(3, alias_blur=0.1) > 1e-6) == 29
    assert disk(3, alias_blur=0.1).max() == pytest.approx(1 / 29)


@pytest.mark.parametrize(("reach", "passes"), [(1, 1), (2, 1), (4, 3)])
def test_glass_blur_is_the_walk_of_the_generator_scripts(reach: int, passes: int) -> None:
    """Following all pixels at once ends where visiting them one after the other ends."""
    (image,) = photos(1, 24, 30)
    first, second = generators(["a", "a"], seed=0, corruption="glass_blur", severity=1)
    result = glass_blur(image[np.newaxis], [first], sigma=0.01, reach=reach, passes=passes)
    for _ in range(passes):
        walk(image, second, reach)
    np.testing.assert_array_equal(result[0], image)


def walk(image: Images, rng: np.random.Generator, reach: int) -> None:
    """Let every pixel, from the last to the first, take the value its random neighbour has by then."""
    height, width = image.shape[:2]
    rows, columns = range(reach + 1, height - reach + 1), range(reach + 1, width - reach + 1)
    steps = rng.integers(-reach, reach, size=(2, len(rows), len(columns)))
    for row in reversed(rows):
        for column in reversed(columns):
            down, right = steps[:, row - rows[0], column - columns[0]]
            image[row, column] = image[row + down, column + right]


@pytest.mark.parametrize("angle", [0.0, 90.0])
def test_dragging_follows_its_ray(angle: float) -> None:
    """A single bright pixel leaves a trail of half a Gaussian, backwards along the angle."""
    image = np.zeros((1, 21, 21, 1), dtype=np.float32)
    image[0, 10, 10] = 1
    trail = drag(image, [angle], radius=3, sigma=2)[0, ..., 0]
    trail = trail if angle == 0 else trail.T
    weights = np.exp(-(np.arange(7) ** 2) / 8)
    np.testing.assert_allclose(trail[10, 10:3:-1], weights / weights.sum(), rtol=1e-5)
    assert trail.sum() == pytest.approx(1)


@pytest.mark.parametrize("factor", [1.0, 1.07, 1.3, 2.5, 4.5])
@pytest.mark.parametrize("side", [32, 61])
def test_clipped_zoom_is_the_centre_of_the_zoomed_centre(factor: float, side: int) -> None:
    """Interpolating only what stays gives what zooming the cut-out and trimming it gives."""
    (image,) = photos(1, side, side) / np.float32(255)
    crop = int(np.ceil(side / factor))
    start = (side - crop) // 2
    zoomed = ndimage.zoom(image[start : start + crop, start : start + crop], (factor, factor, 1), order=1)
    trim = (len(zoomed) - side) // 2
    expected = zoomed[trim : trim + side, trim : trim + side]
    np.testing.assert_allclose(clipped_zoom(image[np.newaxis], factor)[0], expected, atol=1e-5)


def test_plasma_fills_its_range_and_repeats() -> None:
    """A map reaches 0 and 1, and its opposite borders fit together."""
    plasma = plasma_fractal(generators(["a", "b"], seed=0, corruption="fog", severity=1), size=64, decay=3.0)
    assert plasma.min(axis=(1, 2)).tolist() == [0, 0]
    assert plasma.max(axis=(1, 2)).tolist() == [1, 1]
    assert np.abs(plasma[:, 0] - plasma[:, -1]).mean() < 0.1


def test_fog_keeps_the_brightest_value_in_range() -> None:
    """Fog adds to a black image nothing, and to a white one it takes light away."""
    assert (corrupted(grey(0), "fog", 5) == 0).all()
    assert corrupted(grey(255), "fog", 5).max() == 255
    assert corrupted(grey(255), "fog", 5).mean() < 200


def test_frost_textures_have_the_colours_of_the_photographs() -> None:
    """Mean and contrast are those written down, and a texture repeats without a seam."""
    for texture, ice in zip(frost_textures(0.3), ICE_TEXTURES, strict=True):
        np.testing.assert_allclose(255 * texture.mean(axis=(0, 1)), ice.colour, atol=1.5)
        assert 255 * texture.std(axis=(0, 1)).mean() == pytest.approx(ice.contrast, rel=0.2)
        inner = np.abs(np.diff(texture, axis=0)).mean()
        assert np.abs(texture[0] - texture[-1]).mean() < 2 * inner


def test_snow_falls_on_both_halves() -> None:
    """Black is bleached to the same grey everywhere, and the flakes are symmetric under half a turn."""
    snowy = corrupted(grey(0), "snow", 3)
    np.testing.assert_array_equal(snowy, snowy[:, ::-1, ::-1])
    assert snowy.min() == int(255 * 0.1 * 0.5)


@pytest.mark.parametrize("table", TABLES)
def test_flakes_are_dragged_as_bytes(table: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The generator scripts of all three tables make an 8-bit picture of the flakes before ImageMagick drags it."""
    dragged = []

    def seen(flakes: npt.NDArray[np.float32], *args: object, **settings: object) -> object:
        dragged.append(255 * flakes)
        return drag(flakes, *args, **settings)  # type: ignore[arg-type]

    monkeypatch.setattr(weather, "drag", seen)
    corrupted(photos(), "snow", 2, table=table)

    assert dragged[0].max() > 0
    np.testing.assert_allclose(np.rint(dragged[0]), dragged[0], atol=1e-3)


def test_flakes_are_truncated_before_they_are_dragged() -> None:
    """Snow of one light, 127.98 of 255, falls twice as 127: 254, where exact numbers would give 255."""
    snowy = weather.snow(
        grey(0), generators(["a"], seed=0, corruption="snow", severity=1),
        mean=127.98 / 255, scale=0, zoom=2, threshold=0.1, radius=3, sigma=1, keep=1,
    )  # fmt: skip
    assert (snowy == 254).all()


@pytest.mark.parametrize("corruption", ["brightness", "saturate"])
@pytest.mark.parametrize("severity", SEVERITIES)
def test_colours_change_in_hsv(corruption: str, severity: int) -> None:
    """Shortcuts through proportions agree with the way through hue, saturation and value, greys included."""
    images = photos(1, 16, 16)
    images[0, 0] = 77
    images[0, 1] = 0
    row = CONSTANTS["cifar_c"][corruption][severity - 1]
    change = {"brightness": brighter, "saturate": more_saturated}[corruption]
    expected = [change(*colorsys.rgb_to_hsv(*pixel), *row) for pixel in images.reshape(-1, 3) / 255]
    assert_truncated(corrupted(images, corruption, severity).reshape(-1, 3), 255 * np.array(expected))


def brighter(hue: float, saturation: float, value: float, *constants: float) -> tuple[float, ...]:
    """Raise the value."""
    (shift,) = constants
    return colorsys.hsv_to_rgb(hue, saturation, min(value + shift, 1))


def more_saturated(hue: float, saturation: float, value: float, *constants: float) -> tuple[float, ...]:
    """Scale and shift the saturation."""
    factor, shift = constants
    return colorsys.hsv_to_rgb(hue, min(saturation * factor + shift, 1), value)


@pytest.mark.parametrize("severity", SEVERITIES)
def test_contrast_is_its_formula(severity: int) -> None:
    """Every value moves towards the mean of its channel by the factor of the table."""
    (factor,) = CONSTANTS["cifar_c"]["contrast"][severity - 1]
    means = photos().mean(axis=(1, 2), keepdims=True)
    assert_truncated(corrupted(photos(), "contrast", severity), means + factor * (photos() - means))


def test_an_elastic_transform_moves_a_flat_image_nowhere() -> None:
    """Borders are mirrored, so no foreign colour enters."""
    for severity in SEVERITIES:
        assert (corrupted(grey(200), "elastic_transform", severity, table="imagenet_c") == 200).all()


@pytest.mark.parametrize(("severity", "cells"), [(1, 38), (5, 16)])
def test_pixelate_leaves_so_many_cells(severity: int, cells: int) -> None:
    """A ramp of 64 columns keeps as many different columns as the small image had."""
    ramp = np.broadcast_to(np.arange(0, 256, 4, dtype=np.uint8)[:, np.newaxis], (1, 64, 64, 3))
    pixelated = corrupted(np.ascontiguousarray(ramp), "pixelate", severity, table="imagenet_c")
    assert len(np.unique(pixelated[0, 0, :, 0])) == cells


def test_jpeg_compression_is_a_round_trip() -> None:
    """The result is what Pillow reads back at the quality of the table."""
    file = BytesIO()
    Image.fromarray(photos()[0]).save(file, "JPEG", quality=40)
    np.testing.assert_array_equal(corrupted(photos()[:1], "jpeg_compression", 5)[0], np.asarray(Image.open(file)))


def test_canny_outlines_a_square() -> None:
    """Edges are thin closed lines along the rim, with nothing inside and nothing outside."""
    image = np.zeros((1, 32, 32), dtype=np.float32)
    image[:, 8:24, 8:24] = 200
    edges = canny(image, low=50, high=150)[0]
    assert not edges[11:21, 11:21].any()
    assert not edges[:7].any()
    assert edges[16].sum() == edges[:, 16].sum() == 2


def test_water_without_rims_is_even() -> None:
    """A drop that covers the whole image lights it evenly, and no drop leaves it as it is."""
    black = np.zeros((2, 16, 16, 3), dtype=np.float32)
    liquid = np.zeros((2, 16, 16), dtype=np.float32)
    liquid[0] = 0.7
    wet, dry = _water(black, liquid, 0.6)
    np.testing.assert_allclose(wet, np.broadcast_to(0.6 * TURQUOISE, wet.shape), rtol=1e-5)
    assert not dry.any()


def test_levels_are_spread_by_their_histogram() -> None:
    """The lowest level becomes 0, the highest 255, others their share of pixels; a single one stays."""
    levels = np.array([[[3, 5], [5, 9]], [[7, 7], [7, 7]]], dtype=np.uint8)
    expected = [[[0, 170], [170, 255]], [[7, 7], [7, 7]]]
    np.testing.assert_array_equal(_equalise_histogram(levels), expected)


def test_mud_is_brown() -> None:
    """On white, splashes of mud are opaque in the middle."""
    muddy = corrupted(grey(255, side=224), "spatter", 5, table="imagenet_c")
    assert tuple(muddy.reshape(-1, 3).min(axis=0)) == pytest.approx((63, 42, 20), abs=2)


def assert_truncated(images: Images, expected: npt.NDArray[np.floating]) -> None:
    """Assert that the bytes are the clipped expectation, truncated; a rounding error may decide a whole number."""
    excess = np.clip(expected, 0, 255) - images
    assert excess.min() > -0.01
    assert excess.max() < 1.01
