"""Views with one draw for a whole batch: those of torchvision's transforms, and the same for all images."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torchvision import transforms
from torchvision.transforms import functional

from tta_pipeline.methods.teachers.batch_views import cotta_batch_view, roid_batch_view
from tta_pipeline_tests.methods.kernels import WAITS, Kernels
from tta_pipeline_tests.methods.test_augmentations import smooth

VIEWS = {"cotta": cotta_batch_view, "roid": roid_batch_view}


def recoloured(images: torch.Tensor) -> torch.Tensor:
    """Return *images* after the five changes of colour, in random order, drawn from the global generator."""
    for step in torch.randperm(5):
        factor = torch.empty(1).uniform_(*[(0.6, 1.4), (0.7, 1.3), (0.5, 1.5), (-0.06, 0.06), (0.7, 1.3)][step]).item()
        if step == 4:
            images = functional.adjust_gamma(images.clamp(1e-8, 1), factor)
        else:
            name = ("brightness", "contrast", "saturation", "hue")[step]
            images = getattr(functional, f"adjust_{name}")(images, factor)
    return images


def by_transforms(images: torch.Tensor, name: str) -> torch.Tensor:
    """Return the view that torchvision's transforms make, which draw from the global generator."""
    size = images.shape[2]
    affine = transforms.RandomAffine(
        15, translate=(1 / 16, 1 / 16), scale=(0.9, 1.1), interpolation=transforms.InterpolationMode.BILINEAR
    )
    moved = affine(transforms.Pad(size // 2, padding_mode="edge" if name == "cotta" else "reflect")(recoloured(images)))
    if name == "cotta":
        moved = transforms.GaussianBlur(5, sigma=(0.001, 0.5))(moved)
    view = transforms.RandomHorizontalFlip()(transforms.CenterCrop(size)(moved))
    return (view + 0.005 * torch.randn(view.shape) if name == "cotta" else view).clamp(0, 1)


@pytest.mark.parametrize("name", VIEWS)
@pytest.mark.parametrize("seed", range(4))
def test_views_are_those_of_torchvisions_transforms(name: str, seed: int):
    """The same random numbers give the pixels that torchvision's transforms make, to 1e-5, and as many are drawn."""
    torch.manual_seed(seed)
    expected = by_transforms(smooth(), name)
    state = torch.get_rng_state()
    generator = torch.Generator().manual_seed(seed)
    found = VIEWS[name](smooth(), generator)

    torch.testing.assert_close(expected, found, rtol=0, atol=1e-5)
    assert torch.equal(state, generator.get_state())


@pytest.mark.parametrize("name", VIEWS)
def test_one_draw_holds_for_all_images(name: str):
    """An image many times gives one view many times, but for the noise of CoTTA; the next view is another."""
    images, generator = smooth(count=1).repeat(6, 1, 1, 1), torch.Generator().manual_seed(0)
    first, second = VIEWS[name](images, generator), VIEWS[name](images, generator)
    spread = (first - first[0]).std()

    assert (0 == spread) if name == "roid" else (0.004 < spread < 0.008)
    assert (first - second).std() > 0.03


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
@settings(max_examples=8, deadline=None)
@given(
    seed=st.integers(0, 2**32), count=st.integers(1, 5), size=st.tuples(st.integers(8, 33), st.integers(8, 33)),
    value=st.sampled_from([0.0, 0.3, 1.0, None]), dtype=st.sampled_from([torch.float32, torch.float16]),
)  # fmt: skip
def test_views_are_images_of_the_same_shape(view, *, seed, count, size, value, dtype):
    """Any batch of any size, plain colours and half precision included, gives finite float32 images in [0, 1]."""
    images = torch.rand(count, 3, *size) if value is None else torch.full((count, 3, *size), value)
    found = view(images.to(dtype), torch.Generator().manual_seed(seed))

    assert images.shape == found.shape
    assert torch.float32 == found.dtype
    assert ((found >= 0) & (found <= 1)).all()


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
def test_the_host_waits_for_nothing(view):
    """A view takes at most 150 kernels, and none is waited for: tensors on the device meta have no values to read."""
    images = torch.empty(16, 3, 32, 32, device="meta")
    with Kernels("meta") as kernels:
        view.__wrapped__(images, torch.Generator().manual_seed(0))  # unwrapped, since meta knows no autocast

    assert not WAITS & set(kernels.names)
    assert 10 < len(kernels.names) <= 150
