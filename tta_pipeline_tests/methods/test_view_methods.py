"""TTAug and MEMO, which look at one image in many views, against plain loops over images."""

import pytest
import torch
from torch import nn

from tta_pipeline.methods import build
from tta_pipeline.methods.views.augmix import augmix_view
from tta_pipeline_tests.methods.kernels import Kernels
from tta_pipeline_tests.methods.models import MODELS, NUM_CLASSES, contrasts, surer

ALPHA = 1 / 17
VIEWS = 5


class Mixed(nn.Module):
    """Batch norm written out: source statistics, and a seventeenth of the batch's."""

    def __init__(self, source: nn.BatchNorm2d) -> None:
        super().__init__()
        self.weight, self.bias = source.weight, source.bias
        self.mean, self.var = source.running_mean, source.running_var

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return *x* normalised."""
        flat = x.detach().transpose(0, 1).flatten(1)
        mean = (1 - ALPHA) * self.mean + ALPHA * flat.mean(1)
        var = (1 - ALPHA) * self.var + ALPHA * flat.var(1)
        scale = self.weight / (var + 1e-5).sqrt()
        return x * scale.view(1, -1, 1, 1) + (self.bias - mean * scale).view(1, -1, 1, 1)


def plain(name: str) -> nn.Module:
    """Return the model with batch norm written out."""
    model = surer(MODELS[name]())
    return nn.Sequential(*(Mixed(layer) if isinstance(layer, nn.BatchNorm2d) else layer for layer in model))


def stream() -> list[torch.Tensor]:
    """Return two small batches."""
    return contrasts(num_batches=2, batch_size=3)


def run(method: str, name: str, **settings) -> list[torch.Tensor]:
    """Return what *method* predicts for each batch."""
    adapted = build(method, surer(MODELS[name]()), num_classes=NUM_CLASSES, num_augmentations=VIEWS, **settings)
    return [adapted.predict(batch) for batch in stream()]


@pytest.mark.parametrize("name", MODELS)
def test_ttaug_is_the_mean_over_image_and_views(name: str):
    """Logits are averaged over the image and its views, which share their batch statistics."""
    model, generator, expected = plain(name), torch.Generator().manual_seed(0), []
    for images in stream():
        for image in images:
            views = augmix_view(image[None].repeat(VIEWS, 1, 1, 1), generator, crop="resized")
            expected.append(model(torch.cat([image[None], views])).detach().mean(0))

    torch.testing.assert_close(torch.stack(expected), torch.cat(run("ttaug", name)), rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("steps", [1, 2])
def test_memo_follows_its_formula(name: str, steps: int):
    """Each image is predicted by a model that starts at the source and descends the entropy of the mean prediction."""
    generator, expected = torch.Generator().manual_seed(0), []
    for image in torch.cat(stream()).split(1):
        model = plain(name)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        for _ in range(steps):
            mean = model(augmix_view(image.repeat(VIEWS, 1, 1, 1), generator, crop="padded")).softmax(1).mean(0)
            optimizer.zero_grad()
            (-(mean * mean.log()).sum()).backward()
            optimizer.step()
        expected.append(model(image).detach())

    settings = {"num_augmentations": VIEWS, "preset": "cifar", "lr": 0.05, "steps": steps}
    memo = build("memo", surer(MODELS[name]()), num_classes=NUM_CLASSES, **settings)
    found = [memo.predict(batch) for batch in stream()]

    torch.testing.assert_close(torch.cat(expected), torch.cat(found), rtol=0, atol=1e-5)
    counted = (memo.num_forwards, memo.num_backwards, memo.num_adapted_samples, memo.num_updates)
    assert (6 + 6 * steps * VIEWS, 6 * steps * VIEWS, 6 * steps, 6 * steps) == counted


@pytest.mark.parametrize("method", ["ttaug", "memo"])
def test_the_size_of_batches_does_not_matter(method: str):
    """Images one by one are predicted as in a batch, though views of a batch are drawn at once."""
    settings = {"num_classes": NUM_CLASSES, "num_augmentations": VIEWS}
    together, one_by_one = (build(method, surer(MODELS["bn"]()), **settings) for _ in range(2))
    images = torch.cat(stream())
    expected = torch.cat([one_by_one.predict(image) for image in images.split(1)])

    torch.testing.assert_close(expected, together.predict(images), rtol=0, atol=1e-5)


def test_memo_is_reset_by_one_copy_for_each_dtype():
    """Resets between images copy all parameters and buffers at once, and not one by one."""
    method = build("memo", surer(MODELS["bn"]()), num_classes=NUM_CLASSES, num_augmentations=VIEWS)
    method.predict(stream()[0])
    with Kernels("cpu") as kernels:
        method.reset()

    assert 2 == kernels.names.count("_foreach_copy_")  # numbers, and how many batches each batch norm has seen
    assert not {"copy_", "clone"} & set(kernels.names)


def test_memo_without_resets_goes_on():
    """With episodic false, an image finds what those before it left behind."""
    kept = run("memo", "bn", lr=0.05, episodic=False)
    forgotten = run("memo", "bn", lr=0.05)

    assert torch.equal(kept[0][0], forgotten[0][0])
    assert not torch.equal(kept[0][1], forgotten[0][1])
