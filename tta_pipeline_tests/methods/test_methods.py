"""Each method does what its paper says, held against a plain second implementation."""

import inspect
import math
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from torch import nn
from torch.nn.functional import log_softmax, softmax

from tta_pipeline.benchmarks.experiment_specs import Experiment
from tta_pipeline.cli.evaluate import evaluate
from tta_pipeline.errors import AdaptationError
from tta_pipeline.methods import METHODS, build
from tta_pipeline.methods.entropy.spa import NoiseShares, add_noise, mask_low_frequencies
from tta_pipeline.methods.entry import PRESETS, GradientHyperparameters
from tta_pipeline.methods.gradient_method import GradientMethod
from tta_pipeline.methods.norm_layers import NORM_LAYERS
from tta_pipeline.methods.own_methods import say_origin
from tta_pipeline_tests.methods.models import (
    MODELS,
    NUM_CLASSES,
    batch_norm_model,
    batches,
    contrasts,
    layer_norm_model,
    surer,
)


def logits(method: str, model: nn.Module, images: list[torch.Tensor], **settings) -> list[torch.Tensor]:
    """Return what *method* predicts for each batch."""
    adapted = build(method, model, num_classes=NUM_CLASSES, **settings)
    return [adapted.predict(batch) for batch in images]


def test_source_is_the_bare_loop():
    """Without adaptation the logits are those of the model in evaluation mode, bit for bit."""
    model = batch_norm_model()
    with torch.inference_mode():
        expected = [model(batch) for batch in batches()]

    torch.testing.assert_close(expected, logits("source", batch_norm_model(), batches()), rtol=0, atol=0)


def test_norm_is_the_bare_loop_in_training_mode():
    """Batch statistics are those that batch norm uses while it trains, bit for bit."""
    model = batch_norm_model().train()
    with torch.no_grad():
        expected = [model(batch) for batch in batches()]

    torch.testing.assert_close(expected, logits("norm", batch_norm_model(), batches()), rtol=0, atol=0)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_tent_follows_its_formula(name: str, optimizer: str):
    """Logits over several batches are those of entropy descent on the affine parameters, written out here."""
    model = MODELS[name]().train()
    affine = [p for layer in model if isinstance(layer, NORM_LAYERS) for p in (layer.weight, layer.bias)]
    steps = (
        torch.optim.SGD(affine, lr=0.05, momentum=0.9)
        if optimizer == "sgd"
        else torch.optim.Adam(affine, lr=0.05, betas=(0.9, 0.999))
    )
    expected = []
    for batch in batches():
        prediction = model(batch)
        probabilities = softmax(prediction, 1)
        (-(probabilities * probabilities.log()).sum(1).mean()).backward()
        steps.step()
        steps.zero_grad()
        expected.append(prediction.detach())

    found = logits("tent", MODELS[name](), batches(), lr=0.05, optimizer=optimizer)

    torch.testing.assert_close(expected, found, rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", MODELS)
def test_zerosiam_follows_its_formula(name: str):
    """Logits are those in front of no predictor, over updates by what the predictor makes of the same features."""
    model = MODELS[name]().train()
    affine = [p for layer in model if isinstance(layer, NORM_LAYERS) for p in (layer.weight, layer.bias)]
    predictor = torch.eye(model[-1].in_features, requires_grad=True)
    steps = [torch.optim.SGD(affine, lr=0.05, momentum=0.9), torch.optim.SGD([predictor], lr=0.5, momentum=0.9)]
    expected = []
    for batch in batches():
        features = model[:-1](batch)
        prediction = model[-1](features).detach()
        p, q = softmax(prediction, 1), softmax(model[-1](features @ predictor.T), 1)
        entropy = -(q * q.log()).sum(1)
        divergence = (p * (p / q).log()).sum(1) + (q * (q / p).log()).sum(1)
        model.zero_grad()
        predictor.grad = None
        (entropy + divergence).mean().backward()
        for step in steps:
            step.step()
        expected.append(prediction)

    found = logits("zerosiam", MODELS[name](), batches(), lr=0.05, predictor_lr_factor=10)

    torch.testing.assert_close(expected, found, rtol=0, atol=1e-5)
    assert not torch.equal(predictor, torch.eye(len(predictor)))


@pytest.mark.parametrize("name", ["bn", "ln"])
def test_spa_follows_its_formula(name: str):
    """Logits are those of the images, over updates by the views of them that are predicted less surely."""
    model = surer(MODELS[name]()).train()
    affine = [p for layer in model if isinstance(layer, NORM_LAYERS) for p in (layer.weight, layer.bias)]
    predictor = torch.eye(model[-1].in_features, requires_grad=True)
    steps = [torch.optim.SGD(affine, lr=0.05, momentum=0.9), torch.optim.SGD([predictor], lr=0.1, momentum=0.9)]
    generator = torch.Generator().manual_seed(0)
    roots, velocity = torch.full((14, 14), math.sqrt(0.4), requires_grad=True), torch.zeros(14, 14)
    patch_of = [side * 14 // 16 for side in range(16)]
    expected, counts = [], []
    for batch in contrasts():
        prediction = model(batch).detach()
        shares = (roots**2)[patch_of][:, patch_of]
        masked = mask_low_frequencies(batch, generator, region=0.5, mask_ratio=0.3)
        noise = torch.empty(3, 16, 16).normal_(generator=generator)
        views = [masked, (((1 - shares) * (2 * batch - 1) + shares * noise).clamp(-1, 1) + 1) / 2]
        losses = []
        for view in views:
            rows = model[-1](model[:-1](view) @ predictor.T)
            divergences = [
                (p.exp() * (p - q)).sum()
                for p, q in zip(log_softmax(prediction, 1), log_softmax(rows, 1), strict=True)
                if p.max() > q.max()
            ]
            counts.append(len(divergences))
            losses.append(sum(divergences) / max(1, len(divergences)))
        model.zero_grad()
        predictor.grad = None
        if sum(counts[-2:]):
            sum(losses).backward()
            for step in steps:
                step.step()
            velocity = 0.9 * velocity + (torch.zeros(14, 14) if roots.grad is None else roots.grad)
            moved = roots.detach() + velocity
            roots = (moved * (0.4 / (moved**2).mean()).sqrt()).clamp(-1, 1).requires_grad_(True)
        expected.append(prediction)

    settings = {"mask_region": 0.5, "mask_ratio": 0.3, "lr": 0.05, "predictor_lr_factor": 2, "noise_ratio": 0.4}
    adapted = build("spa", surer(MODELS[name]()), num_classes=NUM_CLASSES, **settings)
    torch.testing.assert_close(expected, [adapted.predict(batch) for batch in contrasts()], rtol=0, atol=1e-4)
    num_steps = sum(any(pair) for pair in zip(counts[::2], counts[1::2], strict=True))
    found = (adapted.num_forwards, adapted.num_backwards, adapted.num_adapted_samples, adapted.num_updates)
    assert (240, 32 * num_steps, sum(counts), num_steps) == found
    assert 0 < sum(counts) < 32 * num_steps
    assert not torch.equal(predictor, torch.eye(len(predictor)))
    torch.testing.assert_close(roots.detach(), adapted.state_dict()["_shares"]["_roots"], rtol=0, atol=1e-4)
    assert roots.std() > 0.001


@pytest.mark.parametrize("size", [(15, 16), (16, 15), (32, 32)])
def test_low_frequencies_are_masked_and_no_others(size: tuple[int, int]):
    """About a share of the amplitudes in the middle of the spectrum are zero, in pairs; all else stays."""
    images = torch.rand(20, 3, *size, generator=torch.Generator().manual_seed(1))
    masked = mask_low_frequencies(images, torch.Generator().manual_seed(2), region=0.4, mask_ratio=0.3)
    before, after = (torch.fft.fft2(2 * each.double() - 1) for each in (images, masked))
    is_zero = after.abs() < 1e-4
    torch.testing.assert_close(before[~is_zero], after[~is_zero], rtol=0, atol=1e-4)

    rows, columns = (range(-int(0.2 * side), int(0.2 * side) + 1) for side in size)
    is_low = torch.zeros(size, dtype=torch.bool)
    for row in rows:
        for column in columns:
            is_low[row, column] = True
            assert torch.equal(is_zero[..., row, column], is_zero[..., -row, -column])
    assert not is_zero[..., ~is_low].any()
    assert 0.25 < is_zero[..., is_low].double().mean() < 0.35
    assert 0.15 < is_zero[..., 0, 0].double().mean() < 0.45


def test_noise_has_its_share():
    """The rest of the image stays, noise goes around the middle of its range, and is the same for all images."""
    images = torch.full((2, 3, 200, 200), 0.2)
    noisy, other = add_noise(images, torch.Generator().manual_seed(1), shares=torch.full((200, 200), 0.1))

    assert math.isclose(0.9 * 0.2 + 0.1 * 0.5, noisy.mean(), abs_tol=1e-3)
    assert math.isclose(0.1 * 0.5, noisy.std(), abs_tol=1e-3)
    assert torch.equal(noisy, other)


@pytest.mark.parametrize("mean_share", [0.0, 0.1, 0.4, 1.0])
def test_noise_goes_where_it_raises_the_loss(mean_share: float):
    """Shares keep their mean, are those of patches of 16 pixels in 224, and none is more than 1."""
    shares = NoiseShares(mean_share, torch.device("cpu"))
    for _ in range(3):
        shares.per_pixel(torch.Size((224, 224)))[48:64, 32:48].mean().div(10).backward()
        shares.step()
    found = shares.per_pixel(torch.Size((224, 224))).detach()

    patch = found[48:64, 32:48]
    assert (patch == found.max()).all()
    assert found.max() <= 1
    assert found.mean() <= mean_share + 1e-6
    assert 0.01 > mean_share - found.mean()
    assert mean_share in (0, 1) or (found < mean_share).sum() == 224 * 224 - 256


def test_settings_of_spa_are_those_of_its_authors():
    """A ResNet-50 with group norm and a ViT-B have rates, masks and noise of their own."""
    names = ("lr", "predictor_lr_factor", "mask_ratio", "noise_ratio")
    presets = METHODS["spa"].presets

    assert [2.5e-3, 10, 0.1, 0.1] == [getattr(presets["imagenet"], name) for name in names]
    assert [1e-2, 5, 0.2, 0.4] == [getattr(presets["imagenet_vit"], name) for name in names]


def test_episodic_tent_forgets_each_batch():
    """With a reset before every batch, no batch depends on the one before it."""
    batch, other = batches(num_batches=2)
    alone = logits("tent", batch_norm_model(), [batch], episodic=True, lr=0.1)[0]
    after = logits("tent", batch_norm_model(), [other, batch], episodic=True, lr=0.1)[1]

    torch.testing.assert_close(alone, after, rtol=0, atol=0)


def test_counters_count_samples():
    """Forwards and backwards are samples, updates are steps."""
    adapted = build("tent", batch_norm_model(), num_classes=NUM_CLASSES, steps=2)
    for batch in batches(num_batches=3, batch_size=12):
        adapted.predict(batch)

    assert (72, 72, 6) == (adapted.num_forwards, adapted.num_backwards, adapted.num_updates)


def test_a_collapse_is_counted():
    """A batch with logits that are no finite numbers is counted, not passed over."""
    adapted = build("source", batch_norm_model(), num_classes=NUM_CLASSES)
    adapted.predict(batches()[0])
    adapted.predict(torch.full((4, 3, 16, 16), float("inf")))

    assert 1 == adapted.num_nonfinite_batches


class OwnNetwork(nn.Sequential):
    """A network in a file of the user: this one."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return the logits."""
        return super().forward(images)


class OwnLoss(GradientMethod):
    """A method in a file of the user, which inherits all but its loss."""

    name = "own"

    def _loss(self, logits: torch.Tensor) -> torch.Tensor:
        return logits.sum() / 0


def test_who_updates_the_network_is_named_for_nan_and_not_the_network():
    """With the file of one's own method; the network is named only where nothing updates it."""
    network, here = OwnNetwork(*batch_norm_model()), Path(__file__).name
    own = OwnLoss(network, GradientHyperparameters(lr=0.1), num_classes=NUM_CLASSES)
    tent, source = (build(name, network, num_classes=NUM_CLASSES) for name in ("tent", "source"))
    for method in (own, tent, source):
        method.predict(batches()[0])

    assert re.fullmatch(rf" after updates by own \(.*{here}, line {line_of(OwnLoss)}\)", say_origin(own))
    assert say_origin(tent) == " after updates by tent"
    assert re.fullmatch(rf" \(.*{here}, line {line_of(OwnNetwork.forward)}\)", say_origin(source))


def line_of(found: Any) -> int:
    """Return the line of this file at which a class or function begins."""
    return inspect.getsourcelines(found)[1]


@pytest.mark.parametrize("method", ["tent", "eta", "eata", "sar", "deyo"])
@pytest.mark.parametrize("batch_size", [None, 1, 2, 63, 64, 200])
def test_rates_of_a_vit_follow_the_batch_size(method: str, batch_size: int | None):
    """1e-3 for batches of 64, in proportion for others, twice that for single images with SAR and DeYO."""
    settings = METHODS[method].configure("imagenet_vit", {}, batch_size=batch_size)
    doubled = 2 if batch_size == 1 and method in ("sar", "deyo") else 1

    assert isinstance(settings, GradientHyperparameters)
    assert pytest.approx(1e-3 * doubled * (batch_size or 64) / 64) == settings.lr
    assert ("sgd", 0.9) == (settings.optimizer, settings.momentum)


def test_only_an_unset_rate_of_the_vit_follows_the_batch_size():
    """What the user sets is taken as it is, and other presets have one rate for all."""
    tent = METHODS["tent"]

    assert {"lr": 5e-4}.items() <= tent.configure("imagenet_vit", {"lr": 5e-4}, batch_size=1).model_dump().items()
    assert tent.configure("imagenet", {}, batch_size=1) == tent.configure("imagenet", {})


def test_the_rate_of_a_vit_is_that_of_what_the_method_sees():
    """An experiment over batches of 8, one over windows of 4, and `build` take the rate of the same batch size."""
    common = {"model": "m", "method": "sar", "preset": "imagenet_vit"}
    batches_of_8 = Experiment.model_validate({**common, "batch_size": 8})
    windows_of_4 = Experiment.model_validate({**common, "batch_size": 1, "protocol": {"sliding_window": 4}})
    built = build("sar", layer_norm_model(), num_classes=NUM_CLASSES, preset="imagenet_vit", batch_size=8)

    assert (1.25e-4, 6.25e-5) == (
        batches_of_8.configured_hyperparameters().lr,
        windows_of_4.configured_hyperparameters().lr,
    )
    assert batches_of_8.configured_hyperparameters() == built.hyperparameters


def test_a_preset_that_a_method_lacks_is_refused():
    """The error names those that it has, where a benchmark file is read; the command line offers all presets."""
    with pytest.raises(ValidationError, match=r"\bpreset\b.*'imagenet_vit'.*\bimagenet, cifar\b"):
        Experiment.model_validate({"model": "m", "method": "cotta", "preset": "imagenet_vit"})
    (option,) = [each for each in evaluate.params if each.name == "preset"]
    assert list(PRESETS) == list(option.type.choices)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"method": "tnet"}, r"'tnet'.*\btent\b"),
        ({"method": "tent", "preset": "mnist"}, r"'mnist'.*\bimagenet, cifar\b"),
        ({"method": "tent", "lr": 0}, r"\btent\b.*\blr\b.*\b0\b"),
        ({"method": "source", "lr": 1}, r"\bsource\b.*\blr\b"),
        ({"method": "norm", "model": layer_norm_model()}, r"\bbatch norm\b.*\bnorm\b"),
        ({"method": "tent", "model": nn.Sequential(nn.Flatten(), nn.Linear(768, NUM_CLASSES))}, r"\bnorm\b.*\btent\b"),
    ],
)
def test_what_cannot_work_is_refused_before_any_image(arguments: dict, named: str):
    """Unknown names, values out of range and models that do not suit are errors that say what would."""
    with pytest.raises(AdaptationError, match=named):
        build(**{"model": batch_norm_model(), "num_classes": NUM_CLASSES, **arguments})
