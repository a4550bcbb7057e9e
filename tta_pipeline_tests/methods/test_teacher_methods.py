"""CoTTA, RoTTA, PeTTA, RMT and AdaContrast against second implementations, written from the formulas."""

import math
from copy import deepcopy

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, linear, relu

from tta_pipeline.errors import AdaptationError
from tta_pipeline.methods import build
from tta_pipeline.methods.method import Method
from tta_pipeline.methods.norm_layers import NORM_LAYERS
from tta_pipeline.methods.teachers.batch_views import cotta_batch_view
from tta_pipeline.methods.teachers.teacher_views import cotta_view, moco_view, weak_view
from tta_pipeline_tests.methods.models import (
    MODELS,
    NUM_CLASSES,
    batch_norm_model,
    contrasts,
    source_batches,
    surer,
)

LR = 0.05
MOMENTUM = 0.9
"""Of teachers: far from 1, so that they move within a few batches."""
VIEWS = {"image": cotta_view, "batch": cotta_batch_view}
"""Views by who draws."""


def run(method: str, model: nn.Module, *, batch_size: int = 16, **settings) -> tuple[list[torch.Tensor], Method]:
    """Return what *method* predicts for each batch, and the method."""
    adapted = build(method, model, num_classes=NUM_CLASSES, **{"lr": LR, "nesterov": False, **settings})
    return [adapted.predict(batch) for batch in contrasts(batch_size=batch_size)], adapted


def assert_follows(expected: list[torch.Tensor], found: list[torch.Tensor]):
    """Logits agree over all batches, to 1e-5."""
    torch.testing.assert_close([logits.detach() for logits in expected], found, rtol=0, atol=1e-5)


def soft(logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Return the cross entropy of each row with the probabilities of *target*."""
    return torch.stack([-(t.softmax(0) * x.softmax(0).log()).sum() for x, t in zip(logits, target, strict=True)])


def symmetric(logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Return the mean of both directions."""
    return 0.5 * soft(logits, target) + 0.5 * soft(target, logits)


@torch.no_grad()
def average(teacher: nn.Module, student: nn.Module, momentum: float = MOMENTUM):
    """Move every parameter of *teacher* towards *student*."""
    for slow, fast in zip(teacher.parameters(), student.parameters(), strict=True):
        slow.copy_(momentum * slow + (1 - momentum) * fast)


@pytest.mark.parametrize(
    ("name", "threshold", "loss", "draws"),
    [
        ("bn", 0.0, soft, "image"),
        ("bn", 1.0, soft, "batch"),
        ("bn", 1.0, symmetric, "image"),
        ("ln", 0.0, symmetric, "batch"),
        ("ln", 1.0, soft, "image"),
        ("gn", 1.0, symmetric, "batch"),
    ],
)
def test_cotta_follows_its_formula(name: str, threshold: float, loss, draws: str):
    """Logits are the teacher's, with three views or without; weights go back to the source model by chance."""
    student = surer(MODELS[name]()).train()
    teacher, source = deepcopy(student), deepcopy(student)
    optimizer = torch.optim.SGD(student.parameters(), lr=LR, momentum=0.9)
    generator, expected = torch.Generator().manual_seed(0), []
    for images in contrasts():
        prediction = student(images)
        with torch.no_grad():
            sure = source(images).softmax(1).max(1).values.mean() >= threshold
            views = [images] if sure else three_views(images, generator, draws)
            target = torch.stack([teacher(view) for view in views]).mean(0)
        optimizer.zero_grad()
        loss(prediction, target).mean().backward()
        optimizer.step()
        average(teacher, student)
        with torch.no_grad():
            for parameter, start in zip(student.parameters(), source.parameters(), strict=True):
                restored = torch.rand(parameter.shape, generator=generator) < 0.3
                parameter[restored] = start[restored]
        expected.append(target)

    found, method = run(
        "cotta", surer(MODELS[name]()), anchor_threshold=threshold, num_augmentations=3, restore_probability=0.3,
        teacher_momentum=MOMENTUM, symmetric=loss is symmetric, augment_per=draws,
    )  # fmt: skip

    assert_follows(expected, found)
    assert (5 * 80 if threshold else 3 * 80, 80, 5) == (method.num_forwards, method.num_backwards, method.num_updates)


def three_views(images: torch.Tensor, generator: torch.Generator, draws: str) -> list[torch.Tensor]:
    """Return views drawn image by image in one go, or view by view."""
    if draws == "image":
        return list(cotta_view(images.repeat(3, 1, 1, 1), generator).split(len(images)))
    return [cotta_batch_view(images, generator) for _ in range(3)]


class Robust(nn.Module):
    """RoTTA's batch norm written out."""

    def __init__(self, source: nn.BatchNorm2d) -> None:
        super().__init__()
        self.weight, self.bias = source.weight, source.bias
        self.mean, self.var = source.running_mean, source.running_var
        self.follows = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return *x* normalised."""
        mean, var = self.mean, self.var
        if self.follows:
            flat = x.transpose(0, 1).flatten(1)
            mean, var = 0.8 * mean + 0.2 * flat.mean(1), 0.8 * var + 0.2 * flat.var(1, correction=0)
            self.mean, self.var = mean.detach(), var.detach()
        scale = self.weight / (var + 1e-5).sqrt()
        return x * scale.view(1, -1, 1, 1) + (self.bias - mean * scale).view(1, -1, 1, 1)


def offer(memory: dict[int, list[dict]], new: dict, *, size: int):
    """Algorithm 1 of RoTTA over one list for each class."""

    def score(entry: dict) -> float:
        return 1 / (1 + math.exp(-entry["age"] / size)) + entry["uncertainty"] / math.log(NUM_CLASSES)

    def replaces(labels: list[int]) -> bool:
        old = max((entry for label in labels for entry in memory[label]), key=score)
        if score(old) <= score(new):
            return False
        memory[old["label"]] = [entry for entry in memory[old["label"]] if entry is not old]
        return True

    own = memory[new["label"]]
    if len(own) >= size / NUM_CLASSES:
        comes_in = replaces([new["label"]])
    elif sum(map(len, memory.values())) < size:
        comes_in = True
    else:
        most = max(map(len, memory.values()))
        comes_in = replaces([label for label, entries in memory.items() if len(entries) == most])
    if comes_in:
        memory[new["label"]].append(new)
    for entries in memory.values():
        for entry in entries:
            entry["age"] += 1


@pytest.mark.parametrize(("draws", "name"), [("image", "bn"), ("batch", "bn"), ("image", "ln"), ("batch", "gn")])
def test_rotta_follows_its_formula(name: str, draws: str):
    """Logits are the teacher's, whose statistics and weights follow what a class-balanced memory holds."""
    size = 12
    source = surer(MODELS[name]())
    student = nn.Sequential(*(Robust(layer) if isinstance(layer, nn.BatchNorm2d) else layer for layer in source))
    teacher = deepcopy(student)
    norms = [layer for model in (student, teacher) for layer in model if isinstance(layer, Robust)]
    adapted = [p for layer in student if isinstance(layer, (Robust, *NORM_LAYERS)) for p in (layer.weight, layer.bias)]
    optimizer = torch.optim.Adam(adapted, lr=LR)
    memory: dict[int, list[dict]] = {label: [] for label in range(NUM_CLASSES)}
    generator, seen, learned, expected = torch.Generator().manual_seed(0), 0, 0, []
    for images in contrasts():
        with torch.no_grad():
            expected.append(teacher(images))
        for image, logits in zip(images, expected[-1], strict=True):
            uncertainty = cross_entropy(logits, logits.softmax(0)).item()
            seen += 1
            new = {"image": image, "label": int(logits.argmax()), "uncertainty": uncertainty, "age": 0, "number": seen}
            offer(memory, new, size=size)
            if seen % 10 == 0:
                kept = sorted(
                    (entry for entries in memory.values() for entry in entries), key=lambda entry: entry["number"]
                )
                learned += len(kept)
                learn_from(
                    kept, student, teacher, norms=norms, optimizer=optimizer, size=size,
                    view=lambda images: VIEWS[draws](images, generator),
                )  # fmt: skip

    found, method = run(
        "rotta", surer(MODELS[name]()), optimizer="adam", memory_size=size, update_frequency=10, alpha=0.2, nu=0.1,
        augment_per=draws,
    )  # fmt: skip

    assert_follows(expected, found)
    assert (80 + 2 * learned, learned, learned, 8) == (
        method.num_forwards, method.num_backwards, method.num_adapted_samples, method.num_updates
    )  # fmt: skip


def learn_from(kept: list[dict], student, teacher, *, norms, optimizer, size: int, view):
    """Take one step of RoTTA's."""
    images = torch.stack([entry["image"] for entry in kept])
    ages = [entry["age"] / size for entry in kept]
    for layer in norms:
        layer.follows = True
    with torch.no_grad():
        target = teacher(images)
    losses = soft(student(view(images)), target)
    for layer in norms:
        layer.follows = False
    weights = torch.tensor([math.exp(-age) / (1 + math.exp(-age)) for age in ages])
    optimizer.zero_grad()
    (weights * losses).mean().backward()
    optimizer.step()
    average(teacher, student, momentum=0.9)


def uneven(model: nn.Sequential) -> nn.Sequential:
    """Return *model* with other weights and biases of norm layers than 1 and 0, whose powers are the same."""
    generator = torch.Generator().manual_seed(4)
    with torch.no_grad():
        for layer in model:
            if isinstance(layer, NORM_LAYERS):
                layer.weight.mul_(0.7 + 0.6 * torch.rand(layer.weight.shape, generator=generator))
                layer.bias.add_(0.2 * torch.randn(layer.bias.shape, generator=generator))
    return model


@pytest.mark.parametrize(("name", "is_symmetric"), [("bn", False), ("bn", True), ("ln", True), ("gn", False)])
def test_petta_follows_its_formula(name: str, *, is_symmetric: bool):
    """Logits are the teacher's; its rate and the pull to the source depend on how far its class means have gone."""
    size, source_model = 12, uneven(surer(MODELS[name]()))
    student = nn.Sequential(*(Robust(layer) if isinstance(layer, nn.BatchNorm2d) else layer for layer in source_model))
    teacher, source = deepcopy(student), deepcopy(student)
    norms = [layer for model in (student, teacher, source) for layer in model if isinstance(layer, Robust)]
    adapted = [p for layer in student if isinstance(layer, (Robust, *NORM_LAYERS)) for p in (layer.weight, layer.bias)]
    starts = [p.detach().clone() for p in adapted]
    optimizer = torch.optim.Adam(adapted, lr=LR)
    divergence = Divergence(source)
    memory: dict[int, list[dict]] = {label: [] for label in range(NUM_CLASSES)}
    generator, seen, expected, divergences = torch.Generator().manual_seed(0), 0, [], []
    for images in contrasts():
        with torch.no_grad():
            features = teacher[:-1](images)
            expected.append(teacher[-1](features))
        divergences.append(divergence.sense(features, expected[-1].argmax(1)))
        for image, logits in zip(images, expected[-1], strict=True):
            uncertainty = cross_entropy(logits, logits.softmax(0)).item()
            seen += 1
            new = {"image": image, "label": int(logits.argmax()), "uncertainty": uncertainty, "age": 0, "number": seen}
            offer(memory, new, size=size)
            if seen % 10:
                continue
            entries = sorted((entry for kept in memory.values() for entry in kept), key=lambda entry: entry["number"])
            kept = torch.stack([entry["image"] for entry in entries])
            for layer in norms:
                layer.follows = True
            with torch.no_grad():
                target, anchor = teacher(kept), source(kept)
            of_images = student(kept) if is_symmetric else None  # first, since the student's statistics follow
            of_view = student(cotta_view(kept, generator))
            taught = soft(of_view, target).mean()
            if of_images is not None:
                taught = (symmetric(of_view, target).mean() + symmetric(of_images, target).mean()) / 2
            for layer in norms:
                layer.follows = False
            cosines = [
                (p * start).sum() / (p.norm() * start.norm()).clamp(min=1e-8)
                for p, start in zip(adapted, starts, strict=True)
            ]
            loss = taught - 10 * divergences[-1] * sum(cosines) / len(cosines) + 0.5 * soft(of_view, anchor).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            average(teacher, student, momentum=1 - 0.1 * (1 - divergences[-1]))

    found, method = run(
        "petta", uneven(surer(MODELS[name]())), optimizer="adam", memory_size=size, update_frequency=10, alpha=0.2,
        nu=0.1, anchor_weight=0.5, symmetric=is_symmetric, source_data=source_batches(),
    )  # fmt: skip

    assert_follows(expected, found)
    assert 8 == method.num_updates
    assert divergences[0] == 0 < divergences[-1] < 1


class Divergence:
    """How far the means of features have gone from the source's, class by class."""

    def __init__(self, source: nn.Sequential) -> None:
        with torch.no_grad():
            features = torch.cat([source[:-1](images) for images, _ in source_batches()])
        labels = torch.cat([labels for _, labels in source_batches()])
        self.of_class = [features[labels == label] for label in range(NUM_CLASSES)]
        self.means = [each.mean(0) for each in self.of_class]

    def sense(self, features: torch.Tensor, labels: torch.Tensor) -> float:
        """Return the divergence of the classes among *labels*, and enter *features*."""
        gone = []
        for label in labels.unique().tolist():
            own = self.of_class[label]
            gone.append(1 - math.exp(-((self.means[label] - own.mean(0)) ** 2 / (own.var(0) + 1e-6)).mean()))
            self.means[label] = 0.95 * self.means[label] + 0.05 * features[labels == label].mean(0)
        return sum(gone) / len(gone)


@pytest.mark.parametrize(("draws", "name"), [("image", "bn"), ("batch", "bn"), ("image", "ln"), ("batch", "gn")])
def test_rmt_follows_its_formula(name: str, draws: str):
    """Logits are the sum of student and teacher, after a warm-up, with contrast and replay."""
    student = MODELS[name]().train()
    teacher = deepcopy(student)
    generator, expected = torch.Generator().manual_seed(0), []
    projector = []
    for inputs in (student[-1].in_features, 6):
        bound = inputs**-0.5
        projector.append(torch.empty(6, inputs).uniform_(-bound, bound, generator=generator).requires_grad_())
        projector.append(torch.empty(6).uniform_(-bound, bound, generator=generator).requires_grad_())
    optimizer = torch.optim.SGD([*student.parameters(), *projector], lr=LR, momentum=0.9)
    with torch.no_grad():
        features = torch.cat([student[:-1](images) for images, _ in source_batches()])
    labels = torch.cat([labels for _, labels in source_batches()])
    prototypes = torch.stack([features[labels == label].mean(0) for label in range(NUM_CLASSES)])
    for number in range(4):  # 48 samples of warm-up
        images = source_batches()[number % 3][0]
        optimizer.param_groups[0]["lr"] = LR * (number + 1) / 4
        with torch.no_grad():
            target = teacher(images)
        optimizer.zero_grad()
        symmetric(student(images), target).mean().backward()
        optimizer.step()
        average(teacher, student)
    generator = torch.Generator().manual_seed(0)
    for number, images in enumerate(contrasts(batch_size=8)):
        features, features_of_view = student[:-1](images), student[:-1](VIEWS[draws](images, generator))
        logits, of_view = student[-1](features), student[-1](features_of_view)
        with torch.no_grad():
            target = teacher(images)
        loss = symmetric(logits, target).mean() / 2 + symmetric(of_view, target).mean() / 2
        loss = loss + 0.5 * plain_contrast(prototypes, features, features_of_view, projector)
        source, source_labels = source_batches()[number % 3]
        loss = loss + 2 * cross_entropy(student(source), source_labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        average(teacher, student)
        expected.append(logits + target)

    found, method = run(
        "rmt", MODELS[name](), batch_size=8, source_data=source_batches(), projection_dim=6, num_samples_warm_up=48,
        teacher_momentum=MOMENTUM, lambda_cont=0.5, lambda_ce_src=2, augment_per=draws,
    )  # fmt: skip

    assert_follows(expected, found)
    # Five batches of 8, seen by the student twice and by the teacher once, and 12 images of the source for each.
    assert (5 * 36, 5 * 28, 40, 5) == (
        method.num_forwards, method.num_backwards, method.num_adapted_samples, method.num_updates
    )  # fmt: skip


def plain_contrast(prototypes, features, features_of_view, projector) -> torch.Tensor:
    """Return the contrastive loss, one anchor and one positive after the other."""
    groups = []
    for feature, of_view in zip(features, features_of_view, strict=True):
        likeness = [torch.cosine_similarity(feature, prototype, dim=0) for prototype in prototypes]
        groups.append([prototypes[max(range(NUM_CLASSES), key=likeness.__getitem__)], feature, of_view])
    members = [(number, project(vector, *projector)) for number, group in enumerate(groups) for vector in group]
    losses = []
    for i, (group, anchor) in enumerate(members):
        terms = [(other, (anchor @ vector / 0.1).exp()) for j, (other, vector) in enumerate(members) if j != i]
        total = sum(term for _, term in terms)
        losses += [-(term / total).log() for other, term in terms if other == group]
    assert len(losses) == 2 * len(members)
    return sum(losses) / len(losses)


def project(vector: torch.Tensor, first, first_bias, second, second_bias) -> torch.Tensor:
    """Return the direction of *vector* behind two linear layers."""
    projected = linear(relu(linear(vector, first, first_bias)), second, second_bias)
    return projected / projected.norm()


def test_rmt_needs_an_image_of_each_class():
    """A class without source images has no prototype, which is said while it is built."""
    source = [(images, labels.clamp(max=3)) for images, labels in source_batches()]
    with pytest.raises(AdaptationError, match=r"\bsource_data\b.*\b1\b.*\b5\b.*\b4\b.*\brmt\b"):
        build("rmt", batch_norm_model(), num_classes=NUM_CLASSES, source_data=source)


@pytest.mark.parametrize("name", MODELS)
def test_adacontrast_follows_its_formula(name: str):
    """Logits are those after the update; neighbours vote once enough was seen; queue and bank forget the oldest."""
    size, student = 40, surer(MODELS[name]())
    key_model = deepcopy(student)
    optimizer = torch.optim.SGD(student.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4)
    start = torch.Generator().manual_seed(0)
    keys = list(directions(torch.randn(size, student[-1].in_features, generator=start)))
    key_labels = torch.randint(NUM_CLASSES, (size,), generator=start).tolist()
    bank, generator, expected = [], torch.Generator().manual_seed(0), []
    for number, images in enumerate(contrasts()):
        student.train()
        key_model.train()
        weak = weak_view(images, generator)
        with torch.no_grad():
            features = student[:-1](weak)
            labels = student[-1](features).argmax(1)
        if number >= 2:
            labels = torch.tensor([vote(feature, bank) for feature in directions(features)])
        features = student[:-1](moco_view(images, generator))
        logits, queries = student[-1](features), directions(features)
        average(key_model, student)
        with torch.no_grad():
            new_keys = directions(key_model[:-1](moco_view(images, generator)))
        contrast = []
        for query, key, label in zip(queries, new_keys, labels, strict=True):
            positive = (query @ key / 0.07).exp()
            others = [(query @ k / 0.07).exp() for k, other in zip(keys, key_labels, strict=True) if other != label]
            contrast.append(-(positive / (positive + sum(others))).log())
        mean = logits.softmax(1).mean(0)
        loss = cross_entropy(logits, labels) + sum(contrast) / len(contrast) + (mean * mean.log()).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        keys, key_labels = [*keys, *new_keys][-size:], [*key_labels, *labels.tolist()][-size:]
        with torch.no_grad():
            features = key_model[:-1](weak)
            bank = [*bank, *zip(directions(features), key_model[-1](features).softmax(1), strict=True)][-size:]
            expected.append(student.eval()(images))

    found, method = run(
        "adacontrast", surer(MODELS[name]()), lr=0.01, queue_size=size, num_neighbors=4, min_seen=32,
        teacher_momentum=MOMENTUM,
    )  # fmt: skip

    assert_follows(expected, found)
    assert (400, 80, 5) == (method.num_forwards, method.num_backwards, method.num_updates)


def directions(vectors: torch.Tensor) -> torch.Tensor:
    """Return *vectors* (B, D) at length 1."""
    return torch.stack([vector / vector.norm() for vector in vectors])


def vote(feature: torch.Tensor, bank: list[tuple[torch.Tensor, torch.Tensor]]) -> int:
    """Return the class that the four nearest give most probability."""
    nearest = sorted(bank, key=lambda row: -(feature @ row[0]).item())[:4]
    return int(sum(probabilities for _, probabilities in nearest).argmax())
