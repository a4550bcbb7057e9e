"""ROID and CMF against a second implementation, written from the formulas one sample at a time."""

import math

import pytest
import torch
from torch import nn

from tta_pipeline.methods import build
from tta_pipeline.methods.norm_layers import NORM_LAYERS
from tta_pipeline.methods.teachers.batch_views import roid_batch_view
from tta_pipeline.methods.teachers.roid import smoothed_prior
from tta_pipeline.methods.teachers.teacher_views import roid_view
from tta_pipeline_tests.methods.models import MODELS, NUM_CLASSES, batch_norm_model, batches, contrasts, surer

LR = 0.02


def entropy(p: torch.Tensor) -> torch.Tensor:
    """Return the entropy of one sample's probabilities (K,)."""
    return -(p * p.log()).sum()


def scaled(values: list[torch.Tensor]) -> list[torch.Tensor]:
    """Map *values* to [0, 1]."""
    return [(value - min(values)) / (max(values) - min(values)) for value in values]


def weighted_loss(model: nn.Module, images, logits, average: torch.Tensor, view_of) -> tuple[torch.Tensor, int]:
    """Return the sum of the kept samples' losses, and how many those are."""
    with torch.no_grad():
        rows = list(logits.softmax(1))
        diversity = scaled([1 - (p @ average) / (p.norm() * average.norm()) for p in rows])
        certainty = scaled([-entropy(p) for p in rows])
    kept = [i for i in range(len(rows)) if diversity[i] >= sum(diversity) / len(rows)]
    views = model(view_of(images[kept]))
    total = torch.zeros(())
    for i, view in zip(kept, views.softmax(1), strict=True):
        p = logits[i].softmax(0)
        clipped = torch.minimum(p, torch.tensor(0.99))
        ratio = -(clipped * (clipped / (1 - clipped) + 1e-5).log()).sum()
        agreement = -0.5 * (p * view.log()).sum() - 0.5 * (view * p.log()).sum()
        total = total + (diversity[i] * certainty[i] * 3).exp() * (ratio + agreement)
    return total, len(kept)


def corrected(logits: torch.Tensor, *, of: str) -> torch.Tensor:
    """Return logits times the smoothed prior, or logits of probabilities times the prior, not normalised."""
    prior = torch.stack([row.softmax(0) for row in logits]).mean(0)
    s = max(1 / len(logits), 1 / NUM_CLASSES) / max(prior)
    q = (prior + s) / (1 + s * NUM_CLASSES)
    return torch.stack([row * q if of == "logits" else row + q.log() for row in logits])


def source_step(start: list[torch.Tensor]):
    """Return ROID's step back, by a tenth of the way."""

    def step(parameters: list[nn.Parameter]) -> None:
        for parameter, source in zip(parameters, start, strict=True):
            parameter.copy_(0.9 * parameter + 0.1 * source)

    return step


def filtered_step(start: list[torch.Tensor]):
    """Return CMF's step back, with alpha 0.9, gamma 0.8 and q 30 for 38400 parameters."""
    hidden = [source.clone() for source in start]
    q = 30 * sum(source.numel() for source in start) / 38400
    state = {"v": 0.0}

    def step(parameters: list[nn.Parameter]) -> None:
        v = 0.9**2 * state["v"] + q
        beta = max((1 - q) / (v + 1 - q), 0.89)
        state["v"] = beta * v
        for number, (parameter, source) in enumerate(zip(parameters, start, strict=True)):
            hidden[number] = beta * (0.9 * hidden[number] + 0.1 * source) + (1 - beta) * parameter
            parameter.copy_(0.8 * parameter + 0.2 * hidden[number])

    return step


@pytest.mark.parametrize(
    ("name", "method", "step_back", "settings"),
    [
        *((name, "roid", source_step, {"momentum_src": 0.9}) for name in MODELS),
        *((name, "cmf", filtered_step, {"alpha": 0.9, "gamma": 0.8, "q": 30}) for name in MODELS),
        ("bn", "roid", source_step, {"momentum_src": 0.9, "augment_per": "batch"}),
        ("gn", "roid", source_step, {"momentum_src": 0.9, "prior_correction": "logits"}),
    ],
)
def test_roid_and_cmf_follow_their_formulas(name: str, method: str, step_back, settings: dict):
    """Logits are those of weighted descent on the affine parameters, of steps back, and of the corrected prior."""
    model = surer(MODELS[name](), factor=3).train()
    parameters = [p for layer in model.modules() if isinstance(layer, NORM_LAYERS) for p in (layer.weight, layer.bias)]
    optimizer = torch.optim.SGD(parameters, lr=LR, momentum=0.9)
    back = step_back([parameter.detach().clone() for parameter in parameters])
    average, generator = torch.full((NUM_CLASSES,), 1 / NUM_CLASSES), torch.Generator().manual_seed(0)
    view = roid_batch_view if settings.get("augment_per") == "batch" else roid_view
    expected, num_kept = [], 0
    for images in contrasts():
        logits = model(images)
        loss, kept = weighted_loss(model, images, logits, average, lambda kept: view(kept, generator))
        average = 0.9 * average + 0.1 * logits.detach().softmax(1).mean(0)
        optimizer.zero_grad()
        (loss / len(images)).backward()
        optimizer.step()
        with torch.no_grad():
            back(parameters)
        expected.append(corrected(logits.detach(), of=settings.get("prior_correction", "probabilities")))
        num_kept += kept

    adapted = build(method, surer(MODELS[name](), factor=3), num_classes=NUM_CLASSES, lr=LR, nesterov=False, **settings)
    found = [adapted.predict(batch) for batch in contrasts()]

    torch.testing.assert_close(expected, found, rtol=0, atol=1e-5)
    assert 0 < num_kept < 80
    assert (80 + num_kept, 80 + num_kept, num_kept) == (
        adapted.num_forwards, adapted.num_backwards, adapted.num_adapted_samples,
    )  # fmt: skip


def test_the_filter_of_cmf_moves_the_hidden_model_for_few_and_for_many_parameters():
    """The gain begins at 1 where hardly anything is expected to change, and never falls below 0.89."""
    few = build("cmf", batch_norm_model(), num_classes=NUM_CLASSES, q=1e-4)
    many = build("cmf", batch_norm_model(), num_classes=NUM_CLASSES, q=600)

    assert 1 == few._update_gain()
    assert [0.89] * 3 == [many._update_gain() for _ in range(3)]


def test_the_prior_correction_keeps_confidence():
    """An even batch keeps its probabilities; in an uneven one the frequent class gains."""
    even = torch.eye(NUM_CLASSES) * 4
    uneven = torch.stack([even[0]] * 9 + [torch.zeros(NUM_CLASSES)])

    torch.testing.assert_close(even.softmax(1), (even + smoothed_prior(even).log()).softmax(1))
    torch.testing.assert_close(torch.ones(()), smoothed_prior(uneven).sum())
    corrected_uneven = uneven + smoothed_prior(uneven).log()
    assert corrected_uneven[-1].argmax() == 0
    assert corrected_uneven.softmax(1)[0, 0] >= uneven.softmax(1)[0, 0]


@pytest.mark.parametrize("count", [1, 2, 30])
def test_the_prior_is_smoothed_by_the_fewer_of_samples_and_classes(count: int):
    """Logits times prior are those of the formula also where a batch has fewer samples than there are classes."""
    logits = torch.randn(count, NUM_CLASSES, generator=torch.Generator().manual_seed(0))

    torch.testing.assert_close(corrected(logits, of="logits"), logits * smoothed_prior(logits))


def test_a_batch_of_one_keeps_the_model_finite():
    """A last batch of one has no spread to be scaled by, and nothing becomes NaN for what follows."""
    adapted = build("roid", batch_norm_model(), num_classes=NUM_CLASSES)
    adapted.predict(batches(batch_size=1)[0])

    assert adapted.predict(batches()[0]).isfinite().all()
    assert all(math.isfinite(value) for p in adapted.model.parameters() for value in p.flatten().tolist())
