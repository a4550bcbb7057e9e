"""Tent's relatives against second implementations, written from the formulas one sample at a time."""

import math
from collections import OrderedDict
from random import Random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.mixture import GaussianMixture
from torch import nn
from torch.nn.functional import cross_entropy

from tta_pipeline.errors import AdaptationError
from tta_pipeline.methods import METHODS, build
from tta_pipeline.methods.entropy.come import opinion_entropy as opinion_entropies
from tta_pipeline.methods.entropy.deyo import shuffle_patches
from tta_pipeline.methods.entropy.uniform_memory import UniformMemory
from tta_pipeline.methods.method import Method
from tta_pipeline.methods.norm_layers import NORM_LAYERS
from tta_pipeline_tests.methods.models import (
    MODELS,
    NUM_CLASSES,
    batch_norm_model,
    batches,
    contrasts,
    source_batches,
    surer,
)

LR = 0.05
LN_K = math.log(NUM_CLASSES)
SETTINGS = {"lr": LR, "e_margin": 0.7}
E0 = 0.7 * LN_K


@pytest.fixture(params=MODELS)
def make(request):
    """Return a function that makes a model, with batch, layer and group norm in turn."""
    return lambda: surer(MODELS[request.param]())


def run(method: str, model: nn.Module, images: list[torch.Tensor], **settings) -> tuple[list[torch.Tensor], Method]:
    """Return what *method* predicts for each batch, and the method."""
    adapted = build(method, model, num_classes=NUM_CLASSES, **settings)
    return [adapted.predict(batch) for batch in images], adapted


def trainable(model: nn.Module) -> tuple[list[nn.Parameter], torch.optim.Optimizer]:
    """Return the affine parameters of the norm layers and their optimiser; batch norm uses batch statistics."""
    model.train()
    parameters = [p for layer in model.modules() if isinstance(layer, NORM_LAYERS) for p in (layer.weight, layer.bias)]
    return parameters, torch.optim.SGD(parameters, lr=LR, momentum=0.9)


def entropy(probabilities: torch.Tensor) -> torch.Tensor:
    """Return the entropy of one sample's *probabilities* (K,)."""
    return -(probabilities * probabilities.log()).sum()


def mean(values: list[torch.Tensor]) -> torch.Tensor:
    """Return the mean of scalars."""
    return sum(values) / len(values)


def assert_follows(expected: list[torch.Tensor], found: list[torch.Tensor], *, atol: float = 1e-5):
    """Logits agree over all batches, to 1e-5 if no method enlarges rounding."""
    torch.testing.assert_close([logits.detach() for logits in expected], found, rtol=0, atol=atol)


def assert_adapted_on_some(method: Method, *, num_images: int):
    """A test in which no sample is chosen, or every one, would say nothing about the choice."""
    assert 0 < method.num_adapted_samples < num_images


def test_rpl_follows_its_formula(make):
    """The loss is (1 - p^q) / q of the predicted label."""
    model = make()
    _, optimizer = trainable(model)
    expected = []
    for batch in contrasts():
        expected.append(model(batch))
        mean([(1 - row.max() ** 0.8) / 0.8 for row in expected[-1].softmax(1)]).backward()
        optimizer.step()
        optimizer.zero_grad()

    assert_follows(expected, run("rpl", make(), contrasts(), lr=LR)[0])


@pytest.mark.parametrize("params", ["all", "norm"])
def test_shot_im_follows_its_formula(make, params: str):
    """All but the classifier, or the norm layers, descend the mean entropy minus the entropy of the mean prediction."""
    model = make()
    adapted, optimizer = trainable(model)
    if params == "all":
        adapted = [*model[:-1].parameters()]
        optimizer = torch.optim.SGD(adapted, lr=LR, momentum=0.9)
    expected = []
    for batch in contrasts():
        expected.append(model(batch))
        rows = expected[-1].softmax(1)
        entropies = [-(row * (row + 1e-5).log()).sum() for row in [*rows, mean([*rows])]]
        (mean(entropies[:-1]) - entropies[-1]).backward()
        optimizer.step()
        model.zero_grad()

    # Steps on all parameters enlarge rounding, on some processors to 3e-5.
    assert_follows(expected, run("shot_im", make(), contrasts(), lr=LR, params=params)[0], atol=1e-4)


def opinion_entropy(logits: torch.Tensor) -> torch.Tensor:
    """Return the entropy of the opinion of one sample's *logits* (K,), whose length is a constant."""
    evidence = (logits * logits.norm().item() / logits.norm()).exp()
    strength = (evidence + 1).sum()
    return entropy(torch.stack([*(evidence / strength), len(logits) / strength]))


def own_label(logits: torch.Tensor) -> torch.Tensor:
    """Return the generalised cross entropy of the predicted label, for one sample's *logits* (K,)."""
    return (1 - logits.softmax(0).max() ** 0.8) / 0.8


LOSSES = {"entropy": lambda logits: entropy(logits.softmax(0)), "come": opinion_entropy, "gce": own_label}
ENTROPIES = {**LOSSES, "gce": LOSSES["entropy"]}


@pytest.mark.parametrize("loss", LOSSES)
def test_each_loss_takes_the_place_of_the_entropy(make, loss: str):
    """Tent descends the mean of the loss that it is told, and does what the method of that name does."""
    model = make()
    _, optimizer = trainable(model)
    expected = []
    for batch in contrasts():
        expected.append(model(batch))
        mean([LOSSES[loss](row) for row in expected[-1]]).backward()
        optimizer.step()
        optimizer.zero_grad()
    found, _ = run("tent", make(), contrasts(), lr=LR, loss=loss)
    alike, _ = run({"entropy": "tent", "gce": "rpl"}.get(loss, loss), make(), contrasts(), lr=LR)

    assert_follows(expected, found)
    torch.testing.assert_close(alike, found, rtol=0, atol=0)


def test_come_keeps_the_length_of_logits():
    """Its gradient is at right angles to the logits, for a belief in one class as for none."""
    logits = torch.tensor([[9.0, 0.0, 1.0], [0.1, 0.2, 0.3]], requires_grad=True)
    opinion_entropies(logits).sum().backward()

    torch.testing.assert_close(torch.zeros(2), (logits.grad * logits).sum(1))
    assert (logits.grad.abs().sum(1) > 0.001).all()


def test_come_is_a_number_for_any_logits():
    """Logits that are all zero, or so large that their exponential is not, have an opinion and a gradient."""
    logits = torch.tensor([[0.0, 0.0, 0.0], [1000.0, 0.0, -1000.0]], requires_grad=True)
    found = opinion_entropies(logits)
    found.sum().backward()

    # Three beliefs of 1/6 and an uncertainty of 1/2.
    torch.testing.assert_close(torch.tensor([math.log(6) / 2 + math.log(2) / 2, 0.0]), found)
    assert logits.grad.isfinite().all()


def eta_reference(
    model: nn.Module, images: list[torch.Tensor], *, d_margin: float, penalty=lambda: 0.0, loss="entropy"
) -> list:
    """Return ETA's logits for each batch, with *loss* in place of the entropy and *penalty* added."""
    _, optimizer = trainable(model)
    seen, expected = None, []
    for batch in images:
        expected.append(model(batch))
        losses, kept = [], []
        for logits, row in zip(expected[-1], expected[-1].softmax(1), strict=True):
            is_new = seen is None or abs(seen @ row / (seen.norm() * row.norm())) < d_margin
            if (found := ENTROPIES[loss](logits)) < E0 and is_new:
                losses.append(math.exp(E0 - found.item()) * LOSSES[loss](logits))
                kept.append(row.detach())
        if losses:
            seen = mean(kept) if seen is None else 0.9 * seen + 0.1 * mean(kept)
            (mean(losses) + penalty()).backward()
            optimizer.step()
            optimizer.zero_grad()
    return expected


@pytest.mark.parametrize(
    ("d_margin", "loss"),  # some are redundant with layer norm, and with batch and group norm
    [(0.995, "entropy"), *((0.6, loss) for loss in LOSSES)],
)
def test_eta_follows_its_formula(make, d_margin: float, loss: str):
    """Samples that are sure and unlike those before are adapted on, the surest most, whatever the loss is."""
    images = contrasts(num_batches=8)
    expected = eta_reference(make(), images, d_margin=d_margin, loss=loss)
    found, method = run("eta", make(), images, **SETTINGS, d_margin=d_margin, loss=loss)

    assert_follows(expected, found)
    assert_adapted_on_some(method, num_images=128)


@pytest.mark.parametrize(("fisher_size", "d_margin"), [(20, 0.6), (100, 0.995)])
def test_eata_follows_its_formula(make, fisher_size: int, d_margin: float):
    """ETA's loss has a penalty on leaving the source, by the Fisher information of so many clean samples."""
    model = make()
    parameters, _ = trainable(model)
    source = [parameter.detach().clone() for parameter in parameters]
    squares = []
    for images in torch.cat([images for images, _ in source_batches()])[:fisher_size].split(12):
        logits = model(images)
        gradients = torch.autograd.grad(cross_entropy(logits, logits.argmax(1)), parameters)
        squares.append([gradient**2 for gradient in gradients])
    fisher = [mean(values) for values in zip(*squares, strict=True)]

    def penalty() -> torch.Tensor:
        terms = zip(fisher, parameters, source, strict=True)
        return 50 * sum((weight * (now - before) ** 2).sum() for weight, now, before in terms)

    settings = {**SETTINGS, "d_margin": d_margin, "fisher_alpha": 50, "fisher_size": fisher_size}
    expected = eta_reference(model, contrasts(), d_margin=d_margin, penalty=penalty)
    found, _ = run("eata", make(), contrasts(), source_data=source_batches(), **settings)

    assert_follows(expected, found)


def test_the_fisher_penalty_holds_parameters_back():
    """A large penalty keeps parameters nearer to the source model than none."""

    def moved(fisher_alpha: float) -> float:
        settings = {"lr": 0.01, "e_margin": 0.9, "d_margin": 2, "fisher_alpha": fisher_alpha}
        _, method = run("eata", surer(batch_norm_model()), contrasts(), source_data=source_batches(), **settings)
        before = surer(batch_norm_model()).parameters()
        return sum((a - b).norm().item() for a, b in zip(method.model.parameters(), before, strict=True))

    assert moved(20) < moved(0)


def test_eata_without_source_data_is_refused():
    """Without clean samples there is no penalty, and it would be ETA under another name."""
    with pytest.raises(AdaptationError, match=r"\beata\b.*\bsource_data\b.*\beta\b"):
        build("eata", batch_norm_model(), num_classes=NUM_CLASSES)


def test_eata_without_a_penalty_is_eta():
    """Bit for bit."""
    settings = {**SETTINGS, "d_margin": 0.8}
    source = {"source_data": source_batches(), "fisher_alpha": 0.0}
    eata, _ = run("eata", surer(batch_norm_model()), contrasts(), **settings, **source)
    eta, _ = run("eta", surer(batch_norm_model()), contrasts(), **settings)

    torch.testing.assert_close(eta, eata, rtol=0, atol=0)


def test_eata_with_empty_source_data_is_refused():
    """Source data without an image is a mistake, and no reason to leave the penalty out."""
    with pytest.raises(AdaptationError, match=r"\bsource_data\b.*\beata\b"):
        build("eata", batch_norm_model(), num_classes=NUM_CLASSES, source_data=[])


def test_rdumb_is_eta_that_starts_over():
    """After every second step the next batch meets the source model; each such reset counts."""
    images = contrasts()
    settings = {**SETTINGS, "d_margin": 0.8}
    expected = [
        logits
        for start in (0, 2, 4)
        for logits in run("eta", surer(batch_norm_model()), images[start : start + 2], **settings)[0]
    ]
    found, method = run("rdumb", surer(batch_norm_model()), images, **settings, reset_every=2)

    torch.testing.assert_close(expected, found, rtol=0, atol=0)
    assert 2 == method.num_resets


def test_every_method_can_start_over_regularly():
    """With the rule of RDumb, the third batch of Tent meets the source model as the first did."""
    images = contrasts(num_batches=2)
    expected, _ = run("tent", surer(batch_norm_model()), images, lr=LR)
    found, method = run("tent", surer(batch_norm_model()), images * 2, lr=LR, reset="periodic", reset_every=2)

    torch.testing.assert_close(expected * 2, found, rtol=0, atol=0)
    assert 2 == method.num_resets


def asr_reference(make, images: list[torch.Tensor], *, alpha: float, rate: float) -> tuple[list, list[int]]:
    """Return the logits of Tent with ASR for each batch, and how many parameters each reset left as they were."""
    model, source = make(), make()
    trainable(source)
    parameters, optimizer = trainable(model)
    originals = [parameter.detach().clone() for parameter in parameters]
    average, weight, squares, seen, known, expected, left = -math.log(alpha * NUM_CLASSES), 0.0, [], [], None, [], []
    for batch in images:
        logits = model(batch)
        expected.append(logits)
        loss = mean([entropy(row) for row in logits.softmax(1)])
        squares.append([gradient**2 for gradient in torch.autograd.grad(loss, parameters, retain_graph=True)])
        seen.append([parameter.detach().clone() for parameter in parameters])
        if known is not None:
            loss = loss + weight * sum((f * (p - m) ** 2).sum() for p, (f, m) in zip(parameters, known, strict=True))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        phi = mean([float(a != b) for a, b in zip(logits.argmax(1), source(batch).argmax(1), strict=True)])
        concentration = -entropy(mean(list(logits.detach())).softmax(0)).item()
        weight = 3000 * phi**2
        if concentration <= average:
            momentum = 0.7 * phi + 1 - 0.7
            average = momentum * average + (1 - momentum) * concentration
            continue
        found = [
            (mean(list(f)), mean(list(m)))
            for f, m in zip(zip(*squares, strict=True), zip(*seen, strict=True), strict=True)
        ]
        known = (
            found
            if known is None
            else [
                (0.9 * f + 0.1 * new_f, 0.9 * m + 0.1 * new_m)
                for (f, m), (new_f, new_m) in zip(known, found, strict=True)
            ]
        )
        share = min(0.45 + rate * (concentration - average), 1)
        kept = [index for index in range(len(parameters)) if index < (1 - share) * len(parameters)]
        left.append(len(kept))
        values = [parameters[i].detach().clone() if i in kept else originals[i] for i in range(len(parameters))]
        put_back(parameters, values)
        optimizer = torch.optim.SGD(parameters, lr=LR, momentum=0.9)
        average, squares, seen = -math.log(alpha * NUM_CLASSES), [], []
    return expected, left


def undecided(model: nn.Sequential) -> nn.Sequential:
    """Return *model* with logits whose mean is zero, so that a few steps change what it predicts."""
    with torch.no_grad():
        model[-1].bias.sub_(model(contrasts()[0]).mean(0))
    return model


class WithUnused(nn.Module):
    """A model with a norm layer that no prediction depends on."""

    def __init__(self) -> None:
        super().__init__()
        self.used, self.unused = surer(batch_norm_model()), nn.BatchNorm2d(3)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return the logits of *images*."""
        logits: torch.Tensor = self.used(images)
        return logits


@pytest.mark.parametrize("margin", [1e-6, 10.0])
def test_asr_needs_neither_an_update_nor_a_gradient(margin: float):
    """Before a reset, or of a parameter: what it remembers of them is no weight, and predictions stay numbers."""
    always = {"asr_alpha": 1.0, "asr_mu_0": 0.0, "asr_r_0": 0.5, "asr_lambda_0": 1.0}
    images = contrasts(num_batches=3)
    found, method = run("eta", WithUnused(), images, lr=LR, e_margin=margin, d_margin=2.0, reset="asr", **always)

    assert len(images) == method.num_resets
    assert (margin > 1) == (method.num_updates > 0)
    assert all(logits.isfinite().all() for logits in found)
    assert all(values.isfinite().all() for values in method._reset_rule._importance)


@pytest.mark.parametrize(("model", "factor", "alpha", "rate"), [("bn", 3, 0.8, 10.0), ("gn", 8, 0.98, 200.0)])
def test_asr_follows_its_formula(model: str, factor: float, alpha: float, rate: float):
    """What is near the output returns to the source where predictions concentrate, and the more the more they do.

    What mattered before is held on to, the more the more predictions differ from the source model's.
    """

    def make() -> nn.Module:
        return undecided(surer(MODELS[model](), factor=factor))

    images = contrasts(num_batches=12)
    expected, left = asr_reference(make, images, alpha=alpha, rate=rate)
    constants = {"asr_alpha": alpha, "asr_mu_0": 0.7, "asr_r_0": 0.45, "asr_lambda_r": rate, "asr_lambda_0": 3000.0}
    found, method = run("tent", make(), images, lr=LR, reset="asr", **constants)

    assert_follows(expected, found)
    assert len(left) == method.num_resets
    assert 2 * 12 * 16 == method.num_forwards
    assert 2 < len(left) < len(images)
    assert len(set(left)) > 1
    assert (rate == 200) == (0 in left)  # where the share is above 1, everything is reset


@pytest.mark.parametrize(("reset_margin", "loss"), [(0.0, "come"), (1.0, "entropy"), (1.0, "come")])
def test_sar_follows_its_formula(make, reset_margin: float, loss: str):
    """The gradient is that of a point uphill, on samples that are sure in both places; their entropy shows a collapse.

    It is averaged over batches, m = 0.9 m + 0.1 H, and where m is small, the next batch meets the source model. COME's
    entropy takes the place of the softmax's everywhere.
    """
    model = make()
    parameters, optimizer = trainable(model)
    average, steps, resets, expected = None, 0, 0, []
    for batch in contrasts(num_batches=8):
        expected.append(model(batch))
        sure = [index for index, row in enumerate(expected[-1]) if LOSSES[loss](row) < E0]
        before = [parameter.detach().clone() for parameter in parameters]
        uphill(parameters, mean([LOSSES[loss](expected[-1][index]) for index in sure]), rho=0.5)
        kept = [row for row in model(batch)[sure] if LOSSES[loss](row) < E0]
        gradients = torch.autograd.grad(mean(list(map(LOSSES[loss], kept))), parameters) if kept else None
        put_back(parameters, before)
        if kept:
            for parameter, gradient in zip(parameters, gradients, strict=True):
                parameter.grad = gradient
            optimizer.step()
            steps += 1
            second = mean([LOSSES[loss](row).item() for row in kept])
            average = second if average is None else 0.9 * average + 0.1 * second
            if average < reset_margin:
                model = make()
                parameters, optimizer = trainable(model)
                average, resets = None, resets + 1

    settings = {**SETTINGS, "rho": 0.5, "reset_margin": reset_margin, "loss": loss}
    found, method = run("sar", make(), contrasts(num_batches=8), **settings)

    assert_follows(expected, found)
    if loss == "entropy":  # COME makes a model with group norm sure of every sample
        assert_adapted_on_some(method, num_images=2 * 128)
    assert (256, 128 + 16 * steps, steps) == (method.num_forwards, method.num_backwards, method.num_updates)
    assert resets == method.num_resets
    assert (resets > 0) == (reset_margin > 0)


def uphill(parameters: list[nn.Parameter], loss: torch.Tensor, *, rho: float):
    """Move *parameters* by rho along the gradient of *loss*, whatever its length."""
    gradients = torch.autograd.grad(loss, parameters)
    size = sum((gradient**2).sum() for gradient in gradients).sqrt()
    moved = [parameter + rho * gradient / size for parameter, gradient in zip(parameters, gradients, strict=True)]
    put_back(parameters, moved)


@torch.no_grad()
def put_back(parameters: list[nn.Parameter], values: list[torch.Tensor]):
    """Give *parameters* these values."""
    for parameter, value in zip(parameters, values, strict=True):
        parameter.copy_(value)


def test_sar_recovers_from_a_collapse():
    """Where the second entropy is small, the batch after it meets the source model, and the reset counts."""
    images = contrasts()
    alone = [run("sar", surer(batch_norm_model()), [batch], **SETTINGS)[0][0] for batch in images]
    found, method = run("sar", surer(batch_norm_model()), images, **SETTINGS, reset_margin=10)

    torch.testing.assert_close(alone, found, rtol=0, atol=0)
    assert 5 == method.num_resets


def shuffled(image: torch.Tensor, order: list[int], *, patch_len: int) -> torch.Tensor:
    """Return *image* (3, S, S) with the patch that was at position order[i] at position i."""
    size = image.shape[-1] // patch_len
    corners = [(row * size, column * size) for row in range(patch_len) for column in range(patch_len)]
    result = torch.empty_like(image)
    for (row, column), source in zip(corners, order, strict=True):
        top, left = corners[source]
        patch = image[:, top : top + size, left : left + size]
        result[:, row : row + size, column : column + size] = patch
    return result


def test_deyo_follows_its_formula(make):
    """Samples that are sure, and less so once their patches are shuffled, are adapted on, weighted by both."""
    model = make()
    _, optimizer = trainable(model)
    generator = torch.Generator().manual_seed(7)
    expected = []
    for batch in contrasts():
        expected.append(model(batch))
        rows = expected[-1].softmax(1)
        sure = [index for index, row in enumerate(rows) if entropy(row) < 0.8 * LN_K]
        orders = torch.rand(len(sure), 16, generator=generator).argsort(1).tolist()
        views = torch.stack([shuffled(batch[i], order, patch_len=4) for i, order in zip(sure, orders, strict=True)])
        with torch.no_grad():
            after = model(views).softmax(1)
        losses = []
        for row, other in zip(rows[sure], after, strict=True):
            plpd = (row.max() - other[row.argmax()]).item()
            if plpd > 0.01:
                losses.append((math.exp(E0 - entropy(row).item()) + math.exp(plpd)) * entropy(row))
        if losses:
            mean(losses).backward()
            optimizer.step()
            optimizer.zero_grad()

    settings = {**SETTINGS, "deyo_margin": 0.8, "plpd_threshold": 0.01, "seed": 7}
    found, method = run("deyo", make(), contrasts(), **settings)

    assert_follows(expected, found)
    assert_adapted_on_some(method, num_images=80)


@pytest.mark.parametrize("size", [16, 18])
def test_shuffled_patches_keep_every_pixel(size: int):
    """Patches change places and no pixel changes; where they do not divide the image, its size stays."""
    images = torch.rand(3, 3, size, size)
    result = shuffle_patches(images, 4, torch.Generator().manual_seed(0))

    assert images.shape == result.shape
    assert not torch.equal(images, result)
    if size == 16:
        torch.testing.assert_close(images.flatten(1).sort().values, result.flatten(1).sort().values, rtol=0, atol=0)


@pytest.mark.parametrize("method", ["eta", "eata", "rdumb", "sar", "deyo"])
def test_no_reliable_sample_means_no_step(method: str):
    """A batch of which no sample is sure leaves the model as it was, momentum included."""
    images = [*contrasts(num_batches=2), *batches(num_batches=1)]
    margins = {"deyo_margin" if method == "deyo" else "e_margin": 1e-6}
    clean = source_batches() if METHODS[method].source_data == "required" else None
    found, adapted = run(method, batch_norm_model(), images, lr=LR, source_data=clean, **margins)
    expected, _ = run("norm", batch_norm_model(), images)

    torch.testing.assert_close(expected, found, rtol=0, atol=0)
    assert (0, 0, 0) == (adapted.num_backwards, adapted.num_updates, adapted.num_adapted_samples)


@pytest.mark.parametrize("method", ["tent", "eta", "eata", "sar"])
@pytest.mark.parametrize(("params", "adapted"), [("norm", {1, 4}), ("last", {8}), ("all", {0, 1, 3, 4, 8})])
def test_what_adapts_is_a_choice(method: str, params: str, adapted: set[int]):
    """The norm layers, the last linear layer or everything changes, and all else stays."""
    wide = {} if method == "tent" else {"e_margin": 10}
    clean = source_batches() if METHODS[method].source_data == "required" else None
    _, found = run(method, surer(batch_norm_model()), contrasts(), lr=LR, params=params, source_data=clean, **wide)
    before = surer(batch_norm_model()).state_dict()
    changed = {name for name, parameter in found.model.named_parameters() if not torch.equal(before[name], parameter)}

    assert adapted == {int(name.partition(".")[0]) for name in changed}


def test_a_model_without_a_last_layer_for_the_classes_is_refused():
    """The message says what asked for one."""
    with pytest.raises(AdaptationError, match=r"\bSequential\b.*\b7\b.*\btent\b.*\blast\b"):
        build("tent", batch_norm_model(), num_classes=7, params="last")


@pytest.mark.parametrize("method", ["sar", "deyo"])
def test_top_layers_stay_as_they_are(method: str):
    """SAR and DeYO change the norm layers below the top and not those in it."""

    def network() -> nn.Module:
        names = ["conv1", "bn1", "relu1", "conv2", "layer4", "relu2", "pool", "flatten", "fc"]
        return nn.Sequential(OrderedDict(zip(names, surer(batch_norm_model()), strict=True)))

    open_margins = {"deyo_margin": 10, "plpd_threshold": -1} if method == "deyo" else {"e_margin": 10}
    _, adapted = run(method, network(), contrasts(), lr=LR, **open_margins)

    assert not torch.equal(network().bn1.weight, adapted.model.bn1.weight)
    assert torch.equal(network().layer4.weight, adapted.model.layer4.weight)


@pytest.mark.parametrize("split", ["none", "hard", "soft"])
@pytest.mark.parametrize("samples", ["all", "surer_than_source", "reliable"])
def test_unient_follows_its_formula(samples: str, split: str):
    """Entropy of known images falls, of unknown ones rises; of OSTTA's samples only those enter that became surer, of
    ETA's only those that are reliable and unlike earlier ones, by their weights.
    """
    model, source = surer(batch_norm_model()), surer(batch_norm_model()).train()
    _, optimizer = trainable(model)
    expected, average = [], torch.zeros(NUM_CLASSES)
    for batch in contrasts():
        expected.append(model(batch))
        found, before = expected[-1].softmax(1), source(batch).softmax(1).detach()
        known = likely_known(source[:-1](batch).detach(), source[-1].weight.detach(), split)
        own = [entropy(p) * (w if split == "soft" else 1) for p, w in zip(found, known, strict=True)]
        cosines = torch.cosine_similarity(found.detach(), average[None], dim=1).tolist()
        is_chosen = [samples == "all" or bool(p[q.argmax()] >= q.max()) for p, q in zip(found, before, strict=True)]
        if samples == "reliable":
            is_chosen = [
                bool(h < E0) and (split == "soft" or bool(w)) and cosine < 0.994
                for h, w, cosine in zip(own, known, cosines, strict=True)
            ]
            if any(is_chosen):
                kept = found[is_chosen].mean(0).detach()
                average = kept if not average.any() else 0.9 * average + 0.1 * kept
            own = [h * (E0 - h.detach()).exp() for h in own]
        each = list(zip([entropy(p) for p in found], own, known, is_chosen, strict=True))
        if split == "soft":
            pulled, pushed = [h for _, h, w, chosen in each if chosen], [h * (1 - w) for h, _, w, _ in each]
        else:
            pulled, pushed = [h for _, h, w, chosen in each if chosen and w], [h for h, _, w, _ in each if not w]
        loss = (mean(pulled) if pulled else 0) - 0.3 * (mean(pushed) if pushed else 0)
        (loss - 0.7 * entropy(found.mean(0))).backward()
        optimizer.step()
        optimizer.zero_grad()

    settings = {**SETTINGS, "adapt_on": samples, "split": split, "unknown_weight": 0.3, "marginal_weight": 0.7}
    predicted, adapted = run("unient", surer(batch_norm_model()), contrasts(), d_margin=0.994, **settings)
    assert_follows(expected, predicted)
    torch.testing.assert_close(adapted.confidence(predicted[0]), predicted[0].exp().sum(1).log())
    assert adapted.source_logits().shape == predicted[-1].shape


def likely_known(features: torch.Tensor, prototypes: torch.Tensor, split: str) -> list[float]:
    """Return for each image the probability of the Gaussian of images like a class, or whether it is the larger."""
    if split == "none":
        return [1.0] * len(features)
    likeness = torch.cosine_similarity(features[:, None], prototypes[None], dim=2).amax(1)
    unlikeness = 1 - (likeness - likeness.min()) / (likeness.max() - likeness.min())
    mixture = GaussianMixture(2, random_state=0).fit(unlikeness[:, None].numpy())
    shares = mixture.predict_proba(unlikeness[:, None].numpy())[:, mixture.means_.argmin()]
    return [float(share) if split == "soft" else float(share > 0.5) for share in shares]


def test_sotta_follows_its_formula():
    """Sure images fill a memory in which none of a class that has the most is safe; its entropy descends from above."""
    model, memory, num_seen, expected = surer(batch_norm_model()), [[] for _ in range(NUM_CLASSES)], 0, []
    parameters, optimizer = trainable(model)
    optimizer = torch.optim.Adam(parameters, lr=LR)
    generator = torch.Generator().manual_seed(3)

    def draw(count: int) -> int:
        return int(torch.randint(count, (), generator=generator))

    for layer in model.modules():
        if isinstance(layer, nn.BatchNorm2d):
            layer.momentum = 0.3
    for batch in contrasts():
        expected.append(model.eval()(batch).detach())
        for image, shares in zip(batch, expected[-1].softmax(1), strict=True):
            label, num_seen = int(shares.argmax()), num_seen + 1
            if shares.max() >= 0.35:
                sizes = [len(images) for images in memory]
                if sum(sizes) == 7:
                    largest = [number for number, size in enumerate(sizes) if size == max(sizes)]
                    memory[label if label in largest else largest[draw(len(largest))]].pop(draw(max(sizes)))
                memory[label].append(image)
            kept = [image for images in memory for image in images]
            if num_seen % 4 == 0 and len(kept) > 1:
                climb_and_step(model.train(), torch.stack(kept), parameters, optimizer)

    settings = {"threshold": 0.35, "memory_size": 7, "update_frequency": 4, "bn_momentum": 0.3, "rho": 0.1}
    predicted, adapted = run("sotta", surer(batch_norm_model()), contrasts(), lr=LR, preset="cifar", seed=3, **settings)

    assert_follows(expected, predicted, atol=2e-4)
    assert adapted.num_updates == num_seen // 4
    assert max(map(len, memory)) < 7


def test_sotta_learns_from_no_single_image():
    """Of two images in turn, the first is kept until the second has come."""
    settings = {"threshold": 0.1, "update_frequency": 1}
    _, method = run("sotta", surer(batch_norm_model()), contrasts(num_batches=2, batch_size=1), **settings)

    assert 1 == method.num_updates


@given(st.lists(st.integers(0, 3), min_size=1, max_size=40), st.integers(1, 8), st.randoms(use_true_random=False))
def test_a_memory_gives_up_an_image_of_a_class_that_has_the_most(labels: list[int], capacity: int, random: Random):
    """Of its own class if that is one of them; the other images stay, and a copy of the memory goes on alike."""
    memory = UniformMemory(capacity, num_classes=4, draw=random.randrange)
    kept: list[tuple[int, int]] = []
    for number, label in enumerate(labels):
        memory.add(torch.full((1, 1, 1), float(number)), label=label)
        now = sorted((int(memory.images()[slot]), of) for of, slots in enumerate(memory._slots) for slot in slots)
        lost = set(kept) - set(now)
        sizes = [sum(of == each for _, of in kept) for each in range(4)]
        assert set(now) == {*kept, (number, label)} - lost
        assert len(lost) == (len(kept) == capacity)
        assert all(sizes[of] == max(sizes) and (of == label or sizes[label] < max(sizes)) for _, of in lost)
        kept = now

    again = UniformMemory(capacity, num_classes=4, draw=random.randrange)
    again.load_state_dict(memory.state_dict())
    assert torch.equal(memory.images(), again.images())
    assert memory._slots == again._slots


def climb_and_step(
    model: nn.Module, images: torch.Tensor, parameters: list[nn.Parameter], optimizer: torch.optim.Optimizer
):
    """Take a step with the gradient of the mean entropy at the highest point nearby."""
    before = [parameter.detach().clone() for parameter in parameters]
    mean([entropy(shares) for shares in model(images).softmax(1)]).backward()
    length = torch.cat([parameter.grad.flatten() for parameter in parameters]).norm()
    with torch.no_grad():
        for parameter in parameters:
            parameter.add_(0.1 * parameter.grad / length)
    optimizer.zero_grad()
    mean([entropy(shares) for shares in model(images).softmax(1)]).backward()
    with torch.no_grad():
        for parameter, value in zip(parameters, before, strict=True):
            parameter.copy_(value)
    optimizer.step()
    optimizer.zero_grad()
