"""LAME, T3A and NEO, which leave the model as it is, against plain loops over samples."""

import math

import pytest
import torch
from torch import nn

from tta_pipeline.errors import AdaptationError
from tta_pipeline.methods import build
from tta_pipeline_tests.methods.models import NUM_CLASSES, contrasts


def stream() -> list[torch.Tensor]:
    """Return a few small batches."""
    return contrasts(num_batches=3, batch_size=9)


def varied_model() -> nn.Module:
    """Return a model that predicts several classes, about as surely as its classifier does its own weights."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 16 * 16, 8), nn.Tanh(), nn.Linear(8, NUM_CLASSES)).eval()
    with torch.no_grad():
        model[1].weight.mul_(15)
        model[3].weight.mul_(3)
    return model


def run(method: str, **settings) -> list[torch.Tensor]:
    """Return what *method* predicts for each batch."""
    adapted = build(method, varied_model(), num_classes=NUM_CLASSES, **settings)
    return [adapted.predict(batch) for batch in stream()]


def features_and_logits(images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return both of the source model."""
    model = varied_model()
    with torch.no_grad():
        return model[:-1](images), model(images)


def distance(left: torch.Tensor, right: torch.Tensor) -> float:
    """Return the distance of the directions of two vectors."""
    return (left / left.norm() - right / right.norm()).norm().item()


def plain_lame(images: torch.Tensor, *, affinity: str, symmetric: bool) -> torch.Tensor:
    """Return assignments (B, K) after many of the paper's steps."""
    features, logits = features_and_logits(images)
    count = len(images)
    distances = [[distance(features[i], features[j]) for j in range(count)] for i in range(count)]
    if affinity == "rbf":
        width = sum(sorted(row)[3] for row in distances) / count
        weights = [[math.exp(-(d**2) / (2 * width**2)) for d in row] for row in distances]
    else:
        near = [sorted(range(count), key=row.__getitem__)[1:5] for row in distances]
        weights = [[float(j in near[i]) for j in range(count)] for i in range(count)]
    if symmetric:
        weights = [[(weights[i][j] + weights[j][i]) / 2 for j in range(count)] for i in range(count)]
    probabilities = logits.double().softmax(1)
    assigned = probabilities
    for _ in range(100):
        pulls = [sum(weights[i][j] * assigned[j] for j in range(count)) for i in range(count)]
        assigned = torch.stack([(probabilities[i].log() + pulls[i]).softmax(0) for i in range(count)])
    return assigned.float()


@pytest.mark.parametrize("affinity", ["rbf", "knn"])
@pytest.mark.parametrize("symmetric", [False, True])
def test_lame_follows_its_formula(affinity: str, symmetric: bool):  # noqa: FBT001 - a parameter of the test
    """The assignments are those of the steps written out sample by sample."""
    expected = [plain_lame(images, affinity=affinity, symmetric=symmetric) for images in stream()]
    found = [logits.exp() for logits in run("lame", affinity=affinity, knn=4, force_symmetry=symmetric)]

    torch.testing.assert_close(expected, found, rtol=0, atol=1e-5)
    assert any(
        (rows - features_and_logits(images)[1].softmax(1)).abs().max() > 0.01
        for rows, images in zip(expected, stream(), strict=True)
    )


def plain_t3a(stream: list[torch.Tensor], *, size: int) -> list[torch.Tensor]:
    """Return logits for each batch from lists of supports."""
    classifier = varied_model()[-1]
    supports = [[(entropy(classifier(row)), row / row.norm())] for row in classifier.weight.detach()]
    predicted = []
    for images in stream:
        features, logits = features_and_logits(images)
        for feature, row in zip(features, logits, strict=True):
            supports[row.argmax()].append((entropy(row), feature / feature.norm()))
        supports = [sorted(members, key=lambda member: member[0])[:size] for members in supports]
        centroids = [sum(vector for _, vector in members) for members in supports]
        predicted.append(torch.stack([features @ (centroid / centroid.norm()) for centroid in centroids], 1))
    return predicted


def entropy(logits: torch.Tensor) -> float:
    """Return the entropy of one row of *logits* (K,)."""
    probabilities = logits.detach().softmax(0)
    return -(probabilities * probabilities.log()).sum().item()


@pytest.mark.parametrize("size", [1, 3, 100])
def test_t3a_follows_its_formula(size: int):
    """The logits are those of supports kept in lists, whether none has to go or nearly all."""
    torch.testing.assert_close(plain_t3a(stream(), size=size), run("t3a", filter_k=size), rtol=0, atol=1e-5)


def plain_neo(stream: list[torch.Tensor]) -> list[torch.Tensor]:
    """Return logits for each batch from a list of all features so far."""
    classifier = varied_model()[-1]
    seen: list[torch.Tensor] = []
    predicted = []
    for images in stream:
        features, _ = features_and_logits(images)
        seen += list(features)
        mean = sum(seen) / len(seen)
        predicted.append(torch.stack([classifier.weight @ (row - mean) + classifier.bias for row in features]).detach())
    return predicted


def test_neo_follows_its_formula():
    """The logits are those of features less the mean of all that were seen, in batches of different sizes."""
    images = [*stream(), stream()[0][:4]]
    adapted = build("neo", varied_model(), num_classes=NUM_CLASSES)

    torch.testing.assert_close(plain_neo(images), [adapted.predict(batch) for batch in images], rtol=0, atol=1e-5)


def test_neo_costs_what_source_costs():
    """One forward pass of each image, none backward, and no parameter changes."""
    adapted, model = build("neo", varied_model(), num_classes=NUM_CLASSES), varied_model()
    for images in stream():
        adapted.predict(images)

    assert (27, 0, 0, 0) == (
        adapted.num_forwards,
        adapted.num_backwards,
        adapted.num_adapted_samples,
        adapted.num_updates,
    )
    assert all(torch.equal(*pair) for pair in zip(model.parameters(), adapted.model.parameters(), strict=True))


def test_the_first_image_alone_gets_the_bias_of_neo():
    """Its features are their own mean; the second image is predicted from what sets it apart from the first."""
    adapted = build("neo", varied_model(), num_classes=NUM_CLASSES, batch_size=1)
    first, second = (adapted.predict(stream()[0][[number]]) for number in (0, 1))

    torch.testing.assert_close(varied_model()[-1].bias.detach(), first[0])
    assert not torch.equal(first, second)


@pytest.mark.parametrize(
    "method", ["lame", "t3a", "neo", "rmt", "petta", "zerosiam", "spa", "shot_im", "unient", "adacontrast"]
)
def test_a_model_without_a_linear_layer_at_its_end_is_refused(method: str):
    """Features are the input of the layer that gives the classes; without one there are none."""
    model = nn.Sequential(nn.Conv2d(3, NUM_CLASSES, 3), nn.BatchNorm2d(NUM_CLASSES), nn.AdaptiveAvgPool2d(1))
    with pytest.raises(AdaptationError, match=rf"\bSequential\b.*\b{NUM_CLASSES}\b.*\b{method}\b"):
        build(method, model, num_classes=NUM_CLASSES, source_data=[])
