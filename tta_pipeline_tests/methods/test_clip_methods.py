"""The methods for a CLIP follow their papers."""

import math
from collections import Counter

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.functional import normalize, one_hot

from tta_pipeline.errors import AdaptationError
from tta_pipeline.methods import METHODS, build
from tta_pipeline.methods.clip.crop_views import crop_views
from tta_pipeline.methods.clip.entries import ZeroHyperparameters
from tta_pipeline.methods.clip.zero import Zero
from tta_pipeline.models.clip_models import ZeroShotClassifier
from tta_pipeline_tests.methods.models import NUM_CLASSES, clip_model, contrasts


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


@pytest.mark.parametrize("method", ["tda", "bca"])
def test_the_batch_size_changes_nothing(method: str):
    """Images one by one have the logits that they have in one batch."""
    (images,) = contrasts(num_batches=1)
    whole, single = (build(method, clip_model(), num_classes=NUM_CLASSES) for _ in range(2))

    found = torch.cat([single.predict(image[None]) for image in images])
    torch.testing.assert_close(whole.predict(images), found, rtol=0, atol=1e-4)


def test_bca_follows_its_formula():
    """Lists of what entered each mean, averaged anew for every image."""
    model = clip_model()
    texts = normalize(model.head.weight.detach(), dim=1)
    embeddings, priors = list(texts), list(torch.eye(NUM_CLASSES))
    num_moved, entered = [4.0] * NUM_CLASSES, [[prior, prior] for prior in priors]
    expected, num_entered = [], 0
    for image in torch.cat(contrasts()):
        with torch.no_grad():
            feature = normalize(model.tower(image[None]), dim=1)[0]
        likelihoods = torch.stack([6 * embedding @ feature for embedding in embeddings]).softmax(0)
        posterior = sum(likelihood * prior for likelihood, prior in zip(likelihoods, priors, strict=True))
        nearest = int(likelihoods.argmax())
        if likelihoods[nearest] > 0.45:
            mean = (num_moved[nearest] * embeddings[nearest] + feature) / (num_moved[nearest] + 1)
            embeddings[nearest], num_moved[nearest] = normalize(mean, dim=0), num_moved[nearest] + 1
        if likelihoods[nearest] > 0.6:
            entered[nearest].append(posterior)
            priors[nearest] = torch.stack(entered[nearest]).mean(0)
            num_entered += 1
        expected.append(posterior)
    assert 0 < num_entered < sum(num_moved) - 4 * NUM_CLASSES < len(expected)

    settings = {"embedding_threshold": 0.45, "embedding_count": 4.0, "prior_threshold": 0.6, "prior_count": 2.0}
    adapted = build("bca", clip_model(), num_classes=NUM_CLASSES, **settings)
    found = torch.cat([adapted.predict(images) for images in contrasts()])
    torch.testing.assert_close(torch.stack(expected), found.exp(), rtol=0, atol=1e-4)


def elected(logits: list[list[float]], num_kept: int) -> int:
    """Return the class that ZERO elects, vote by vote."""

    def doubt(row: list[float]) -> float:
        shares = [math.exp(value) for value in row]
        return -sum(share / sum(shares) * math.log(share / sum(shares)) for share in shares)

    def label(row: list[float]) -> int:
        return row.index(max(row))

    logits = sorted(logits, key=doubt)
    counts = Counter(label(row) for row in logits[:num_kept])
    tied = [each for each, count in counts.items() if count == max(counts.values())]
    if len(tied) > 1:
        for row in logits[num_kept:]:
            if label(row) in tied:
                return label(row)
        return max(tied, key=lambda each: logits[num_kept][each])
    return tied[0]


def test_zero_follows_its_algorithm():
    """The surest views vote, and ties are broken by the surest of the others."""
    (images,) = contrasts(num_batches=1)
    model, generator = clip_model(), torch.Generator().manual_seed(5)
    settings = {"num_views": 12, "kept_share": 0.34}
    views = crop_views(images, generator, num_views=11)
    with torch.no_grad():
        expected = [
            elected(model(torch.cat([image[None], of_it])).tolist(), 4)
            for image, of_it in zip(images, views, strict=True)
        ]
    found = build("zero", clip_model(), num_classes=NUM_CLASSES, seed=5, **settings).predict(images)

    assert expected == found.argmax(1).tolist()
    torch.testing.assert_close(found.exp().sum(1), torch.ones(len(images)), rtol=0, atol=1e-5)


@given(st.integers(0, 2**32), st.integers(2, 9), st.integers(1, 9), st.integers(2, 4))
def test_a_tie_is_broken_by_the_surest_of_the_other_views(seed: int, num_views: int, num_kept: int, num_classes: int):
    """However many views there are and are kept, the class elected is that of a count by hand."""
    num_kept = min(num_kept, num_views - 1)
    logits = torch.randn(num_views, num_classes, generator=torch.Generator().manual_seed(seed))
    settings = ZeroHyperparameters(num_views=num_views, kept_share=(num_kept + 0.5) / num_views)
    method = Zero(clip_model(), settings, num_classes=NUM_CLASSES)

    assert elected(logits.tolist(), num_kept) == int(method._vote(logits).argmax())


def test_tpt_follows_its_formula():
    """One step of AdamW by hand on the context, on the entropy of the mean of the surest views."""
    (images,) = contrasts(num_batches=1)
    model, generator = clip_model(), torch.Generator().manual_seed(3)
    prompts = model.prompts
    assert prompts is not None
    expected = []
    for image, crops in zip(images, crop_views(images, generator, num_views=11), strict=True):
        with torch.no_grad():
            features = normalize(model.tower(torch.cat([image[None], crops])), dim=1)
        context = prompts.get_buffer("context").clone().requires_grad_()
        shares = (6 * features @ prompts(context).T).softmax(1)
        surest = sorted(range(12), key=(-(shares * shares.log()).sum(1)).tolist().__getitem__)[:3]
        mean = shares[surest].mean(0)
        (gradient,) = torch.autograd.grad(-(mean * mean.log()).sum(), context)
        # The first step of Adam has the size of the learning rate, in the direction of each sign.
        tuned = context * (1 - 0.02 * 0.1) - 0.02 * gradient / (gradient.abs() + 1e-8)
        expected.append(6 * features[0] @ prompts(tuned).T)

    adapted = build(
        "tpt", clip_model(), num_classes=NUM_CLASSES, seed=3, num_views=12, kept_share=0.25, lr=0.02, weight_decay=0.1
    )
    found = adapted.predict(images)
    torch.testing.assert_close(torch.stack(expected).detach(), found, rtol=0, atol=1e-4)
    assert (12 * len(images), 3 * len(images), len(images)) == (
        adapted.num_forwards, adapted.num_backwards, adapted.num_updates,
    )  # fmt: skip


def test_tpt_tunes_each_image_anew():
    """Images one by one have the logits that they have in one batch, and the model's own prompts stay."""
    (images,) = contrasts(num_batches=1)
    model = clip_model()
    assert model.prompts is not None
    before = model.prompts.get_buffer("context").clone()
    whole, single = (build("tpt", each, num_classes=NUM_CLASSES) for each in (model, clip_model()))

    found = torch.cat([single.predict(image[None]) for image in images])
    torch.testing.assert_close(whole.predict(images), found, rtol=0, atol=1e-4)
    assert torch.equal(before, model.prompts.get_buffer("context"))


def test_a_clip_without_prompts_is_refused():
    """By name; other methods use it."""
    model = clip_model()
    bare = ZeroShotClassifier(model.tower, model.head.weight.detach() / 6, scale=6.0)

    with pytest.raises(AdaptationError, match="no prompts with a context; tpt expects"):
        build("tpt", bare, num_classes=NUM_CLASSES)
    build("tda", bare, num_classes=NUM_CLASSES)


@pytest.mark.parametrize("method", [name for name, entry in METHODS.items() if entry.needs == "clip"])
def test_another_number_of_classes_is_refused(method: str):
    """Thresholds in shares of the largest entropy would be wrong."""
    with pytest.raises(
        AdaptationError, match=f"text features of {NUM_CLASSES} classes; {method} expects {NUM_CLASSES + 3}"
    ):
        build(method, clip_model(), num_classes=NUM_CLASSES + 3)
