"""Methods that only change what batch norm normalises with."""

import pytest
import torch
from torch import nn

from tta_pipeline.errors import AdaptationError
from tta_pipeline.methods import build
from tta_pipeline_tests.methods.models import NUM_CLASSES, batch_norm_model, batches


def run(method: str, images: list[torch.Tensor], **settings) -> list[torch.Tensor]:
    """Return what *method* predicts for each batch."""
    adapted = build(method, batch_norm_model(), num_classes=NUM_CLASSES, **settings)
    return [adapted.predict(batch) for batch in images]


@torch.no_grad()
def mixed(images: torch.Tensor, *, alpha: float) -> torch.Tensor:
    """Return logits of the model with (1 - alpha) * source + alpha * batch statistics, layer by layer."""
    for layer in batch_norm_model():
        if isinstance(layer, nn.BatchNorm2d):
            channels = images.transpose(0, 1).flatten(1)
            mean = (1 - alpha) * layer.running_mean + alpha * channels.mean(1)
            var = (1 - alpha) * layer.running_var + alpha * channels.var(1, unbiased=True)
            images = (images - mean[:, None, None]) / (var[:, None, None] + layer.eps).sqrt()
            images = images * layer.weight[:, None, None] + layer.bias[:, None, None]
        else:
            images = layer(images)
    return images


@pytest.mark.parametrize("alpha", [0, 0.1, 1])
@pytest.mark.parametrize("batch_size", [1, 12])
def test_bn_alpha_follows_its_formula(alpha: float, batch_size: int):
    """Mean and variance are mixtures, also for a batch of one; no batch depends on another."""
    images = batches(batch_size=batch_size)
    expected = [mixed(batch, alpha=alpha) for batch in images]

    torch.testing.assert_close(expected, run("bn_alpha", images, alpha=alpha), rtol=0, atol=1e-5)


def test_bn_alpha_of_nothing_is_source():
    """With no weight on the batch the source model predicts."""
    torch.testing.assert_close(run("source", batches()), run("bn_alpha", batches(), alpha=0), rtol=0, atol=1e-6)


def test_bn_ema_is_the_bare_loop():
    """A pass in training mode moves the running statistics; one in evaluation mode predicts, bit for bit."""
    model = batch_norm_model()
    for layer in (model[1], model[4]):
        layer.momentum = 0.3
    expected = []
    with torch.no_grad():
        for batch in batches():
            model.train()(batch)
            expected.append(model.eval()(batch))

    torch.testing.assert_close(expected, run("bn_ema", batches(), momentum=0.3), rtol=0, atol=0)


@pytest.mark.parametrize("method", ["norm", "bn_alpha", "bn_ema", "ttaug", "memo", "rotta", "adacontrast"])
def test_batch_norm_with_an_activation_of_its_own_keeps_it(method: str):
    """A `BatchNormAct2d` of timm gives the logits of batch norm and activation side by side, whatever the statistics.

    Its dropout stays off where batch norm behaves as in training.
    """
    timm_layers = pytest.importorskip("timm.layers")
    fused_model = nn.Sequential(*batch_norm_model())
    for index in (1, 4):
        fused = timm_layers.BatchNormAct2d(8, act_layer=nn.ReLU, drop_layer=lambda **_: nn.Dropout(0.5))
        fused.load_state_dict(fused_model[index].state_dict())
        fused_model[index], fused_model[index + 1] = fused, nn.Identity()
    quick = {"ttaug": {"num_augmentations": 2}, "memo": {"num_augmentations": 2}, "rotta": {"update_frequency": 6}}
    fused_method, plain_method = (
        build(method, model, num_classes=NUM_CLASSES, **quick.get(method, {}))
        for model in (fused_model.eval(), batch_norm_model())
    )

    for batch in batches():
        torch.testing.assert_close(plain_method.predict(batch), fused_method.predict(batch), rtol=0, atol=1e-5)


@pytest.mark.parametrize("method", ["bn_alpha", "ttaug", "memo", "rotta"])
def test_models_without_source_statistics_are_refused(method: str):
    """What starts from running statistics says that there are none while it is built."""
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8, track_running_stats=False), nn.Flatten())
    with pytest.raises(AdaptationError, match=r"\bBatchNorm2d\b"):
        build(method, model, num_classes=NUM_CLASSES)


def test_bn_ema_does_not_train_dropout():
    """Only batch norm behaves as in training: predictions are those of a model without dropout."""
    settings = {"num_classes": NUM_CLASSES}
    with_dropout = build("bn_ema", nn.Sequential(nn.Dropout(0.5), *batch_norm_model()), **settings)
    without = build("bn_ema", batch_norm_model(), **settings)

    for batch in batches():
        torch.testing.assert_close(without.predict(batch), with_dropout.predict(batch), rtol=0, atol=0)


@pytest.mark.parametrize("method", ["norm", "bn_ema"])
def test_batches_of_one_are_refused(method: str):
    """The statistics of a single image are not those of the stream; the error comes before any image."""
    with pytest.raises(AdaptationError, match=rf"\b{method}\b.*\bbatch_size\b\D*\b1\b\D*\b2\b"):
        build(method, batch_norm_model(), num_classes=NUM_CLASSES, batch_size=1)
