"""The methods for a CLIP follow their papers."""

import math

import torch
from torch.nn.functional import normalize, one_hot

from tta_pipeline.adaptation import build
from tta_pipeline_tests.adaptation.models import NUM_CLASSES, clip_model, contrasts


def test_zero_shot_predicts_as_the_model_does():
    """Its logits are those of image and text features, scaled."""
    (images,) = contrasts(num_batches=1)
    model = clip_model()
    with torch.no_grad():
        cosines = normalize(model.tower(images), dim=1) @ normalize(model.head.weight, dim=1).T
    found = build("zero_shot", clip_model(), num_classes=NUM_CLASSES).predict(images)

    torch.testing.assert_close(6 * cosines, found, rtol=0, atol=1e-5)


def test_tda_follows_its_formula():
    """Lists of the surest images of each class vote for it, and those of unsure images against what they may be."""
    model, positive, negative, expected = clip_model(), {}, {}, []
    for image in torch.cat(contrasts()):
        with torch.no_grad():
            feature = normalize(model.tower(image[None]), dim=1)[0]
        logits = model.head.weight.detach() @ feature
        probabilities = logits.softmax(0)
        uncertainty = -(probabilities * probabilities.log()).sum().item()
        label = int(logits.argmax())
        entry = (uncertainty, feature, probabilities)
        caches = [(positive, 3)]
        if 0.2 < uncertainty / math.log2(NUM_CLASSES) < 0.5:
            caches.append((negative, 2))
        for cache, size in caches:
            cache[label] = sorted([*cache.get(label, []), entry], key=lambda kept: kept[0])[:size]
        for kept_label, kept in positive.items():
            for _, key, _ in kept:
                vote = math.exp(-5 * (1 - float(key @ feature)))
                logits = logits + 2 * vote * one_hot(torch.tensor(kept_label), NUM_CLASSES)
        for kept in negative.values():
            for _, key, probable in kept:
                logits = logits - 0.117 * math.exp(-(1 - float(key @ feature))) * ((probable > 0.03) & (probable < 1))
        expected.append(logits)
    assert any(len(kept) == 3 for kept in positive.values())
    assert any(len(kept) == 2 for kept in negative.values())

    adapted = build("tda", clip_model(), num_classes=NUM_CLASSES)
    found = torch.cat([adapted.predict(images) for images in contrasts()])
    torch.testing.assert_close(torch.stack(expected), found, rtol=0, atol=1e-4)


def test_the_batch_size_changes_nothing_for_tda():
    """Images one by one have the logits that they have in one batch."""
    (images,) = contrasts(num_batches=1)
    whole, single = (build("tda", clip_model(), num_classes=NUM_CLASSES) for _ in range(2))

    found = torch.cat([single.predict(image[None]) for image in images])
    torch.testing.assert_close(whole.predict(images), found, rtol=0, atol=1e-4)
