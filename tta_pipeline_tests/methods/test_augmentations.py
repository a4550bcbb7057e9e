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

from tta_pipeline.methods import augmentations
from tta_pipeline.methods.teachers import teacher_views
from tta_pipeline.methods.teachers.teacher_views import cotta_view, cotta_views, moco_view, roid_view, weak_view
from tta_pipeline.methods.views import augmix
from tta_pipeline.methods.views.augmix import augmix_view, augmix_views
from tta_pipeline_tests.methods.kernels import WAITS, Kernels

VIEWS = {
    "cotta": cotta_view,
    "roid": roid_view,
    "weak": weak_view,
    "moco": moco_view,
    "augmix resized": partial(augmix_view, crop="resized"),
    "augmix padded": partial(augmix_view, crop="padded"),
}


ON_DEVICE = {name: view for name, view in VIEWS.items() if not name.startswith("augmix")}
OPERATIONS = ["autocontrast", "equalize", "posterize", "solarize", "rotate", "shear x", "shear y", "shift x", "shift y"]


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


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
def test_autocast_changes_nothing(view):
    """Views are float32, bit for bit the same, where the model computes in bfloat16."""
    expected = view(smooth(), generator())
    with torch.autocast("cpu", torch.bfloat16):
        found = view(smooth(), generator())

    assert torch.float32 == found.dtype
    assert torch.equal(expected, found)


@pytest.mark.parametrize("size", [32, 224])
def test_augmix_takes_few_kernels_and_no_wait(size: int):
    """A group of 32 views of any number of images takes at most 200 kernels; before, one image took 1,100.

    Tensors on the device meta have no values, so that reading one fails.
    """
    images = torch.empty(32 * (16 if size == 32 else 1), 3, size, size, device="meta")
    with Kernels("meta") as kernels:
        augmix_view.__wrapped__(images, generator(), crop="resized")  # unwrapped, since meta knows no autocast

    assert 100 < len(kernels.names) <= 200


@pytest.mark.parametrize("view", ON_DEVICE.values(), ids=ON_DEVICE)
def test_views_drawn_on_the_device_take_few_kernels_and_no_wait(view):
    """A view of a whole batch takes at most 130 kernels, and the host waits for none."""
    images = smooth(count=16)
    with Kernels("cpu") as kernels:
        view(images, generator())

    assert not WAITS & set(kernels.names)
    assert 10 < len(kernels.names) <= 130


def test_many_views_share_their_kernels():
    """For each image of MEMO and each view of CoTTA there are at most a fifth of what one alone takes."""
    images = smooth(count=64, size=32)
    for alone, together in (
        (
            augmix_views(images[:1], generator(), num_views=32, crop="padded"),
            augmix_views(images[:32], generator(), num_views=32, crop="padded"),
        ),
        (cotta_views(images, generator(), num_views=1), cotta_views(images, generator(), num_views=32)),
    ):
        with Kernels("cpu") as of_one:
            list(alone)
        with Kernels("cpu") as of_all:
            list(together)
        assert len(of_all.names) <= 32 * len(of_one.names) / 5


@pytest.mark.parametrize("group_bytes", [1, 3 * 3 * 24 * 24 * 4 * 5, 2**30])
def test_augmix_views_are_the_same_in_groups_of_any_size(monkeypatch: pytest.MonkeyPatch, group_bytes: int):
    """Images one by one, three at once or all at once have the views that a loop over images draws."""
    images, one_by_one = smooth(count=5), generator()
    expected = [augmix_view(image.repeat(5, 1, 1, 1), one_by_one, crop="resized") for image in images.split(1)]
    monkeypatch.setattr(augmentations, "_GROUP_BYTES", group_bytes)
    found = list(augmix_views(images, generator(), num_views=5, crop="resized"))

    torch.testing.assert_close(expected, found, rtol=0, atol=1e-5)


@pytest.mark.parametrize("views_at_once", [1, 2, 100])
def test_cotta_views_are_of_all_images_in_their_order(monkeypatch: pytest.MonkeyPatch, views_at_once: int):
    """Each of five views has every image in its place, changed a little; no two views are alike."""
    images = (0.2 + 0.5 * torch.eye(3)).view(3, 3, 1, 1).expand(3, 3, 24, 24)  # a red, a green and a blue one
    monkeypatch.setattr(augmentations, "_GROUP_BYTES", views_at_once * images.numel() * 4)
    found = torch.stack(list(cotta_views(images, generator(), num_views=5)))

    assert (5, *images.shape) == found.shape
    assert 5 == len({view.numpy().tobytes() for view in found})
    assert torch.equal(torch.arange(3).expand(5, 3), found.mean((3, 4)).argmax(2))


def plain_augmix(image: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
    """Return the AugMix view of *image* (1, 3, H, W) that *numbers* from 0 to 1 decide: algorithm 1 as loops."""
    share, weights, depths, choices, levels, crop = numbers.split(augmix._AUGMIX_NUMBERS)
    shift = augmix._padded_crop(crop.unsqueeze(0), image)
    original = augmix._move_pixels(image, augmentations.flip_maps(shift, crop[4:]))
    weights = -(1 - weights).log()
    mixed = torch.zeros_like(original)
    for chain in range(3):
        view = original
        for step in range(1 + int(3 * depths[chain])):
            number, spread = int(9 * choices[3 * chain + step]), 2 * levels[3 * chain + step] - 1
            level = spread.sign() * (0.01 + 0.09 * spread.abs())
            if number < 4:
                view = augmix._ON_VALUES[number](view, level)
            else:
                view = augmix._move_pixels(view, augmix._affine_maps(torch.tensor([number]), level.view(1), original))
        mixed = mixed + weights[chain] / weights.sum() * view
    return share * original + (1 - share) * mixed


def test_augmix_follows_its_algorithm():
    """Views of many images at once are those of loops over images, chains and steps."""
    images = smooth(count=40)
    numbers = torch.rand(40, sum(augmix._AUGMIX_NUMBERS), generator=generator())
    expected = torch.cat([plain_augmix(image, row) for image, row in zip(images.split(1), numbers, strict=True)])

    torch.testing.assert_close(expected, augmix_view(images, generator(), crop="padded"), rtol=0, atol=1e-5)


def test_augmix_draws_what_the_paper_says():
    """Chains have one to three of nine operations, all about equally often, at levels from 0.01 to 0.1 both ways."""
    count = 3_000
    numbers = torch.rand(3, count, 9, generator=generator())
    parts = list(augmix._chain_parts(numbers[0, :, :3], numbers[1], numbers[2], smooth(count=1)))
    by_step = [sum(len(part.rows) for part in parts[step : step + 5]) for step in (0, 5, 10)]
    of_operation = [sum(len(part.rows) for part in parts[operation::5]) for operation in range(5)]
    levels = torch.cat([part.arguments.flatten() for part in parts if part.operation is augmix._solarize])

    torch.testing.assert_close(torch.tensor(by_step) / (3 * count), torch.tensor([1, 2 / 3, 1 / 3]), rtol=0, atol=0.02)
    frequency = torch.tensor(of_operation) / sum(of_operation)
    torch.testing.assert_close(frequency, torch.tensor([1, 1, 1, 1, 5]) / 9, rtol=0, atol=0.01)
    assert (levels.abs() >= 0.01).all()
    assert (levels.abs() <= 0.1).all()
    torch.testing.assert_close((levels > 0).float().mean(), torch.tensor(0.5), rtol=0, atol=0.05)
    torch.testing.assert_close(levels.abs().mean(), torch.tensor(0.055), rtol=0, atol=0.003)


@settings(max_examples=40, deadline=None)
@given(colour=st.tuples(*[st.integers(0, 255)] * 3), shift=st.floats(-0.5, 0.5))
def test_hue_turns_as_in_hsv(colour: tuple[int, int, int], shift: float):
    """A colour's hue moves on the circle while value and saturation stay."""
    hue, saturation, value = colorsys.rgb_to_hsv(*(c / 255 for c in colour))
    expected = colorsys.hsv_to_rgb((hue + shift) % 1, saturation, value)
    pixel = torch.tensor(colour).view(1, 3, 1, 1) / 255
    found = teacher_views._shift_hue(pixel, torch.tensor(shift).view(1, 1, 1, 1))

    torch.testing.assert_close(torch.tensor(expected), found.flatten(), rtol=0, atol=1e-5)


@pytest.mark.parametrize("jitter", [teacher_views._COTTA_JITTER, teacher_views._MOCO_JITTER])
def test_colours_change_as_in_torchvision(jitter):
    """Each image by factors of its own around 1, and a shift of the hue around 0."""
    images, draws = smooth(), generator()
    found = teacher_views._jitter_colours(images, jitter, generator())
    for name, middle in {"brightness": 1, "contrast": 1, "saturation": 1, "hue": 0, "gamma": 1}.items():
        if amount := getattr(jitter, name):
            amounts = torch.empty(4).uniform_(middle - amount, middle + amount, generator=draws).tolist()
            adjust = getattr(reference, f"adjust_{name}")
            images = torch.stack([adjust(image, each) for image, each in zip(images, amounts, strict=True)])

    torch.testing.assert_close(images, found, rtol=0, atol=2e-3)


def test_a_view_turns_zooms_and_shifts_as_far_as_its_authors_do():
    """Up to 15 degrees, from 0.9 to 1.1, and by up to an eighth of each side, all evenly."""
    places = torch.arange(61) - 30

    def seen(x: int) -> torch.Tensor:
        spot = torch.exp(-(places[:, None] ** 2 + (places - x) ** 2) / 8)
        views = roid_view(spot.expand(400, 3, 61, 61), generator())[:, 0]
        spots = (views > views.amax((1, 2), keepdim=True) / 2).float()
        return torch.stack([(spots * to).sum((1, 2)) / spots.sum((1, 2)) for to in (places[:, None], places)], 1)

    first, second = seen(-12), seen(12)
    turn = torch.rad2deg(((first - second)[:, 0] / (first - second)[:, 1]).atan())
    zoom, shift = (first - second).norm(dim=1) / 24, (first + second) / 61

    for found, expected, tolerance in ((turn, (-15, 15, 0), 1.0), (zoom, (0.9, 1.1, 1), 0.02)):
        ends = torch.stack([found.min(), found.max(), found.mean()])
        torch.testing.assert_close(torch.tensor(expected).float(), ends, rtol=0, atol=tolerance)
    # Uniform numbers up to a quarter, which is an eighth of a side of length 2, have this mean square.
    torch.testing.assert_close(torch.tensor(1 / 48), shift.square().mean(), rtol=0.1, atol=0)


def blurred(images: torch.Tensor, sigmas: list[float], *, radius: int) -> torch.Tensor:
    """Return each of *images* blurred by its sigma, as torchvision does it."""
    size = [2 * radius + 1] * 2
    pairs = zip(images, sigmas, strict=True)
    return torch.stack([reference.gaussian_blur(image, size, [sigma] * 2) for image, sigma in pairs])


def test_a_view_of_cotta_is_blurred_by_up_to_half_a_pixel_and_noisy():
    """Noise has a standard deviation of 0.005, and comes last."""
    images, draws = torch.rand(8, 3, 24, 24, generator=generator(1)) / 4 + 0.3, generator()
    moved = teacher_views._jitter_and_move(images, draws, padding="border")
    sigmas = torch.empty(8).uniform_(0.001, 0.5, generator=draws).tolist()
    noise = (cotta_view(images, generator()) - blurred(moved, sigmas, radius=2))[..., 2:-2, 2:-2]

    torch.testing.assert_close(torch.tensor(0.005), noise.std(), rtol=0.05, atol=0)
    assert noise.mean().abs() < 1e-3


def test_a_strong_view_of_adacontrast_changes_some_images():
    """Every one is cropped, four of five have other colours, one of five is grey, and every other one is blurred."""
    images, draws = smooth(count=40), generator()
    numbers = torch.rand(40, 5, generator=draws)
    crops = augmentations.flip_maps(augmentations.resized_crop(numbers, min_area=0.2), numbers[:, 4])
    expected = augmentations.warp(images, crops, padding="border")

    def some(probability: float, changed: torch.Tensor) -> torch.Tensor:
        is_chosen = torch.rand(40, generator=draws) < probability
        return torch.stack(
            [(new if each else old) for each, old, new in zip(is_chosen, expected, changed, strict=True)]
        )

    expected = some(0.8, teacher_views._jitter_colours(expected, teacher_views._MOCO_JITTER, draws))
    expected = some(0.2, reference.rgb_to_grayscale(expected, 3))
    sigmas = torch.empty(40).uniform_(0.1, 2, generator=draws).tolist()
    expected = some(0.5, blurred(expected, sigmas, radius=6))
    inner = (..., slice(6, -6), slice(6, -6))

    torch.testing.assert_close(expected[inner], moco_view(images, generator())[inner], rtol=0, atol=1e-3)


def test_resized_crops_lie_anywhere_in_the_image():
    """Their area is at least the smallest, their ratio from 3/4 to 4/3, and their place even in both directions."""
    maps = augmentations.resized_crop(torch.rand(4000, 4, generator=generator()), min_area=0.2)
    sides = maps[:, [0, 1], [0, 1]]
    inner = (sides < 0.95).all(1)
    area, ratio = sides[inner].prod(1), sides[inner, 0] / sides[inner, 1]
    places = maps[inner, :, 2] / (1 - sides[inner])
    ends = torch.stack([area.min(), ratio.min(), ratio.max()])

    torch.testing.assert_close(torch.tensor([0.2, 3 / 4, 4 / 3]), ends, rtol=0, atol=0.01)
    assert (sides <= 1).all()
    for end, expected in ((places.amin(0), -1.0), (places.amax(0), 1.0), (places.mean(0), 0.0)):
        torch.testing.assert_close(torch.full((2,), expected), end, rtol=0, atol=0.03)


def test_blur_is_gaussian():
    """Each image is blurred by its own width, as torchvision does it away from the borders."""
    images, sigma = smooth(), [0.001, 0.3, 0.5, 2.0]
    found = augmentations.gaussian_blur(images, torch.tensor(sigma).view(-1, 1, 1, 1), radius=6)

    torch.testing.assert_close(
        blurred(images, sigma, radius=6)[..., 6:-6, 6:-6], found[..., 6:-6, 6:-6], rtol=0, atol=1e-5
    )


def shear(fraction: float) -> float:
    """Return the angle in degrees whose tangent is *fraction*."""
    return math.degrees(math.atan(fraction))


@pytest.mark.parametrize(
    ("operation", "size", "expected"),
    [
        ("rotate", (20, 40), {"angle": 3.0}),  # an oblong image is turned, and not sheared
        ("shear x", (40, 40), {"shear": [shear(0.03), 0.0]}),
        ("shear y", (40, 40), {"shear": [0.0, shear(0.03)]}),
        ("shift x", (30, 60), {"translate": [2, 0]}),
        ("shift y", (60, 30), {"translate": [0, 2]}),
    ],
)
def test_operations_that_move_pixels_are_affine_maps(operation: str, size: tuple[int, int], expected: dict):
    """Up to 30 degrees, a shear of 0.3 and a shift by a third of the side, all times the level; its sign is the way."""
    images = smooth(count=1, size=64)[..., : size[0], : size[1]]
    found = [
        augmix._move_pixels(images, augmix._affine_maps(torch.tensor([OPERATIONS.index(operation)]), level, images))
        for level in torch.tensor([[0.1], [-0.1]])
    ]
    settings = {"angle": 0.0, "translate": [0, 0], "shear": [0.0, 0.0], "scale": 1.0, **expected}
    wanted = reference.affine(images, interpolation=reference.InterpolationMode.BILINEAR, **settings)

    inner = (..., slice(4, -4), slice(4, -4))
    differences = sorted(float((one - wanted)[inner].abs().max()) for one in found)
    assert differences[0] < 1e-4
    assert differences[1] > 0.01


@pytest.mark.parametrize(
    ("operation", "expected", "tolerance"),
    [
        (augmix._posterize, lambda image: ImageOps.posterize(image, 4), 1e-6),
        (augmix._solarize, lambda image: ImageOps.solarize(image, 230), 1e-6),
        (augmix._autocontrast, ImageOps.autocontrast, 1.5 / 255),
        (augmix._equalize, ImageOps.equalize, 4 / 255),
    ],
)
def test_operations_on_values_are_those_of_pillow(operation, expected, tolerance: float):
    """Images of whole levels come out as AugMix has them, but for rounding; so does a channel of one level."""
    levels = (smooth(size=256) * 255).round()
    levels[0, 1] = 77
    images = [to_pil_image(image.byte()) for image in levels]
    wanted = torch.stack([pil_to_tensor(expected(image)) for image in images]).float() / 255
    found = operation(levels / 255, torch.full((4, 1, 1, 1), 25.5 / 255))

    assert isinstance(images[0], Image.Image)
    torch.testing.assert_close(wanted, found, rtol=0, atol=tolerance)


def test_a_padded_crop_shifts_by_up_to_four_pixels():
    """What comes in at the border is black, every shift occurs, and none is larger."""
    point = torch.zeros(400, 3, 21, 21)
    point[:, :, 10, 10] = 1
    crops = augmix._padded_crop(torch.rand(400, 2, generator=generator()), point)
    moved = augmentations.warp(point, crops, padding="zeros")[:, 0]
    places = [divmod(int(row.argmax()), 21) for row in moved]

    torch.testing.assert_close(torch.ones(400), moved.amax((1, 2)), rtol=0, atol=1e-4)
    assert {6, 7, 8, 9, 10, 11, 12, 13, 14} == {row for row, _ in places} == {column for _, column in places}


def test_weak_views_have_seven_eighths_of_each_side_from_anywhere():
    """A gradient from left to right runs the other way in about every other view; one from top to bottom never does."""
    ramp = torch.linspace(0, 1, 32).expand(32, 32)
    views = weak_view(torch.stack([ramp, ramp.T, ramp]).expand(400, 3, 32, 32), generator())
    across, down = views[:, 0, 0, -1] - views[:, 0, 0, 0], views[:, 1, -1, 0] - views[:, 1, 0, 0]
    first = views.amin((2, 3))[:, :2]

    torch.testing.assert_close(torch.full((2, 400), 7 / 8), torch.stack([across.abs(), down]), rtol=0, atol=0.004)
    assert 0.4 < (across < 0).float().mean() < 0.6
    for end, expected in ((first.amin(0), 0.0), (first.amax(0), 1 / 8), (first.mean(0), 1 / 16)):
        torch.testing.assert_close(torch.full((2,), expected), end, rtol=0, atol=0.005)
