"""The methods for a CLIP follow their papers."""

import functools
import math
from collections import Counter

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.distributions import Normal
from torch.nn.functional import cosine_similarity, normalize, one_hot

from tta_pipeline.errors import AdaptationError
from tta_pipeline.evaluation.what_adapts import count_adapted_parameters
from tta_pipeline.methods import METHODS, build
from tta_pipeline.methods.clip.crop_views import crop_views
from tta_pipeline.methods.clip.entries import ZeroHyperparameters
from tta_pipeline.methods.clip.image_cache import ImageCache
from tta_pipeline.methods.clip.zero import Zero
from tta_pipeline.models.zero_shot_classifier import ZeroShotClassifier
from tta_pipeline_tests.methods.models import NUM_CLASSES, SmallPrompts, clip_model, contrasts


def test_zero_shot_predicts_as_the_model_does():
    """Its logits are those of image and text features, scaled."""
    (images,) = contrasts(num_batches=1)
    model = clip_model()
    with torch.no_grad():
        cosines = normalize(model.tower(images), dim=1) @ normalize(model.head.weight, dim=1).T
    found = build("zero_shot", clip_model(), num_classes=NUM_CLASSES).predict(images)

    torch.testing.assert_close(6 * cosines, found, rtol=0, atol=1e-5)


def test_of_equally_sure_images_a_cache_keeps_the_first():
    """As a list does that is sorted by rank and cut, so a repeated image changes nothing."""
    cache = ImageCache(1, 1, widths=[1], device=torch.device("cpu"))
    for value in (1.0, 2.0):
        cache.enter(torch.tensor(0), torch.tensor(0.5), torch.tensor([value]))

    assert [1.0] == cache.features.flatten().tolist()


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


@pytest.mark.parametrize(
    ("method", "rtol"), [("tda", 0), ("bca", 0), ("onzeta", 1e-4), ("mta", 0), ("boostadapter", 0), ("ecalp", 1e-3)]
)
def test_the_batch_size_changes_nothing(method: str, rtol: float):
    """Images one by one have the logits of one batch; those of `ecalp` are in the thousands, `onzeta` adds up steps."""
    (images,) = contrasts(num_batches=1)
    whole, single = (build(method, clip_model(), num_classes=NUM_CLASSES) for _ in range(2))

    found = torch.cat([single.predict(image[None]) for image in images])
    torch.testing.assert_close(whole.predict(images), found, rtol=rtol, atol=1e-4)


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
    if len(tied) > 1 and num_kept < len(logits):
        for row in logits[num_kept:]:
            if label(row) in tied:
                return label(row)
        return max(tied, key=lambda each: logits[num_kept][each])
    return min(tied)


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


unchanged_clip = functools.cache(clip_model)


@given(st.integers(0, 2**32), st.integers(2, 9), st.integers(1, 9), st.integers(2, 4))
def test_a_tie_is_broken_by_the_surest_of_the_other_views(seed: int, num_views: int, num_kept: int, num_classes: int):
    """However many views there are and are kept, the class elected is that of a count by hand.

    If all are kept, it is the first of the tied classes.
    """
    num_kept = min(num_kept, num_views)
    logits = torch.randn(num_views, num_classes, generator=torch.Generator().manual_seed(seed))
    settings = ZeroHyperparameters(num_views=num_views, kept_share=min((num_kept + 0.5) / num_views, 1))
    method = Zero(unchanged_clip(), settings, num_classes=NUM_CLASSES)

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
    assert (12 * len(images), 3 * len(images), len(images), len(images)) == (
        adapted.num_forwards, adapted.num_backwards, adapted.num_updates, adapted.num_adapted_samples,
    )  # fmt: skip


def test_tpt_keeps_the_views_that_were_surest_at_first():
    """Two steps of AdamW; before the second, other views are the surest."""
    (images,) = contrasts(num_batches=1)
    prompts, features = clip_model().prompts, views_of_first()
    assert prompts is not None
    context = nn.Parameter(prompts.get_buffer("context").clone())
    optimizer, surest = torch.optim.AdamW([context], lr=0.5, weight_decay=0.0), []
    for _ in range(2):
        shares = (6 * features @ prompts(context).T).softmax(1)
        surest.append(sorted(range(12), key=(-(shares * shares.log()).sum(1)).tolist().__getitem__)[:3])
        optimizer.zero_grad()
        marginal(shares[surest[0]]).backward()
        optimizer.step()
    settings = {"num_views": 12, "kept_share": 0.25, "lr": 0.5, "weight_decay": 0.0, "steps": 2}
    adapted = build("tpt", clip_model(), num_classes=NUM_CLASSES, seed=3, **settings)
    found = adapted.predict(images[:1])

    assert {*surest[0]} != {*surest[1]}
    torch.testing.assert_close((6 * features[:1] @ prompts(context).T).detach(), found, rtol=0, atol=1e-4)
    assert (6, 2) == (adapted.num_backwards, adapted.num_updates)


def marginal(shares: torch.Tensor) -> torch.Tensor:
    """Return the entropy of the mean of *shares* (V, K)."""
    mean = shares.mean(0)
    return -(mean * mean.log()).sum()


def features_of(images: torch.Tensor) -> torch.Tensor:
    """Return the features of *images*."""
    with torch.no_grad():
        return normalize(clip_model().tower(images), dim=1)


def views_of_first() -> torch.Tensor:
    """Return the features of twelve views of the first image, which a method with the seed 3 draws first."""
    (images,) = contrasts(num_batches=1)
    (crops,) = crop_views(images[:1], torch.Generator().manual_seed(3), num_views=11)
    return features_of(torch.cat([images[:1], crops]))


def test_ctpt_spreads_text_features():
    """A step by hand on TPT's loss minus the mean distance of the text features to their mean."""
    (images,) = contrasts(num_batches=1)
    prompts, features = clip_model().prompts, views_of_first()
    assert prompts is not None
    context = prompts.get_buffer("context").clone().requires_grad_()
    texts = prompts(context)
    shares = (6 * features @ texts.T).softmax(1)
    surest = sorted(range(12), key=(-(shares * shares.log()).sum(1)).tolist().__getitem__)[:3]
    distances = [torch.dist(text, texts.mean(0)) for text in texts]
    (gradient,) = torch.autograd.grad(marginal(shares[surest]) - 0.3 * sum(distances) / NUM_CLASSES, context)
    tuned = context - 0.02 * gradient / (gradient.abs() + 1e-8)
    settings = {"num_views": 12, "kept_share": 0.25, "lr": 0.02, "weight_decay": 0.0, "dispersion_weight": 0.3}
    found = build("ctpt", clip_model(), num_classes=NUM_CLASSES, seed=3, **settings).predict(images[:1])

    torch.testing.assert_close((6 * features[:1] @ prompts(tuned).T).detach(), found, rtol=0, atol=1e-4)


def test_tps_shifts_text_features():
    """A step by hand on a vector for each class, zero at first, on the entropy of the mean of the surest views."""
    (images,) = contrasts(num_batches=1)
    features, texts = views_of_first(), normalize(clip_model().head.weight.detach(), dim=1)
    shift = torch.zeros_like(texts).requires_grad_()
    shares = (6 * features @ normalize(texts + shift, dim=1).T).softmax(1)
    surest = sorted(range(12), key=(-(shares * shares.log()).sum(1)).tolist().__getitem__)[:3]
    (gradient,) = torch.autograd.grad(marginal(shares[surest]), shift)
    shifted = normalize(texts - 0.02 * gradient / (gradient.abs() + 1e-8), dim=1)
    settings = {"num_views": 12, "kept_share": 0.25, "lr": 0.02}
    found = build("tps", clip_model(), num_classes=NUM_CLASSES, seed=3, **settings).predict(images[:1])

    torch.testing.assert_close(6 * features[:1] @ shifted.T, found, rtol=0, atol=1e-4)


def test_mta_follows_its_algorithm():
    """Inlierness and mode of one image, view by view."""
    (images,) = contrasts(num_batches=1)
    features, texts = views_of_first(), normalize(clip_model().head.weight.detach(), dim=1)
    shares = (6 * features @ texts.T).softmax(1)
    squares = [[float((one - other).square().sum()) for other in features] for one in features]
    variances = [sum(sorted(row)[1:4]) / 3 / 2 for row in squares]
    mode, inlierness = features[0], [1 / 12] * 12

    def densities() -> list[float]:
        pairs = zip(features, variances, strict=True)
        return [math.exp(-float((each - mode).square().sum()) / (2 * variance)) for each, variance in pairs]

    for _ in range(5):
        density = densities()
        for _ in range(5):
            support = [sum(float(one @ shares[j]) * inlierness[j] for j in range(12)) for one in shares]
            weights = [math.exp((one + 3 * other) / 0.5) for one, other in zip(density, support, strict=True)]
            inlierness = [each / sum(weights) for each in weights]
        for _ in range(5):
            pairs = zip(densities(), inlierness, features, strict=True)
            mode = normalize(sum(one * other * feature for one, other, feature in pairs), dim=0)
    settings = {"num_views": 12, "affinity_weight": 3.0, "entropy_weight": 0.5}
    found = build("mta", clip_model(), num_classes=NUM_CLASSES, seed=3, **settings).predict(images[:1])

    torch.testing.assert_close(6 * mode @ texts.T, found[0], rtol=0, atol=1e-3)


def test_mta_predicts_a_plain_image():
    """All views of it are alike, so that no kernel has a width."""
    found = build("mta", clip_model(), num_classes=NUM_CLASSES).predict(torch.full((2, 3, 16, 16), 0.5))

    assert found.isfinite().all()


def image_features() -> tuple[torch.Tensor, torch.Tensor]:
    """Return the features of all images of the stream, and those of the texts."""
    return features_of(torch.cat(contrasts())), normalize(clip_model().head.weight.detach(), dim=1)


def test_boostadapter_follows_its_algorithm():
    """Lists of images for each class; a copy of the surest ones also takes the surest views of the present image."""
    positive: dict[int, list] = {}
    negative: dict[int, list] = {}
    model, generator, expected = clip_model(), torch.Generator().manual_seed(3), []
    images = torch.cat(contrasts())

    def doubt(logits: torch.Tensor) -> float:
        return float(-(logits.softmax(0) * logits.log_softmax(0)).sum())

    for image, crops in zip(images, crop_views(images, generator, num_views=7), strict=True):
        with torch.no_grad():
            features = normalize(model.tower(torch.cat([image[None], crops])), dim=1)
            views = [(doubt(each), feature, each) for feature, each in zip(features, model.head(features), strict=True)]
        own, label = views[0], int(views[0][2].argmax())
        positive[label] = sorted([*positive.get(label, []), own], key=lambda kept: kept[0])[:3]
        if 0.2 < own[0] / math.log2(NUM_CLASSES) < 0.5:
            negative[label] = [*negative.get(label, []), own][-2:]
        boosted = {each: list(kept) for each, kept in positive.items()}
        for view in sorted(views, key=lambda kept: kept[0])[:4]:
            its = int(view[2].argmax())
            boosted[its] = sorted([*boosted.get(its, []), view], key=lambda kept: kept[0])[:5]
        logits = own[2].clone()
        for its, kept in boosted.items():
            logits[its] += sum(2 * math.exp(-5 * (1 - float(feature @ features[0]))) for _, feature, _ in kept)
        for _, feature, its_logits in (each for kept in negative.values() for each in kept):
            shares = its_logits.softmax(0)
            logits -= 0.117 * math.exp(-(1 - float(feature @ features[0]))) * ((shares > 0.03) & (shares < 1))
        expected.append(logits)
    assert any(len(kept) == 2 for kept in negative.values())

    settings = {"num_views": 8, "kept_share": 0.5, "num_boosting": 2}
    adapted = build("boostadapter", clip_model(), num_classes=NUM_CLASSES, seed=3, **settings)
    found = torch.cat([adapted.predict(images) for images in contrasts()])
    torch.testing.assert_close(torch.stack(expected), found, rtol=0, atol=1e-4)


def test_onzeta_follows_its_algorithm():
    """Balanced labels, and proxies that descend the cross entropy to them, by autograd."""
    features, texts = image_features()
    proxies, duals, expected = texts, torch.zeros(NUM_CLASSES), []
    for number, feature in enumerate(features, start=1):
        weights = (6 * texts @ feature).exp() * duals.exp()
        label = weights / weights.sum()
        duals = (duals - 2 / number**0.5 * (label - 0.7 / NUM_CLASSES)).clamp(min=0)
        proxies = proxies.clone().requires_grad_()
        log_shares = (proxies @ feature / 0.5).log_softmax(0)
        trust = 0.8 * min(1, number / 20) ** 0.5
        expected.append((trust * log_shares.exp() + (1 - trust) * label).detach())
        (gradient,) = torch.autograd.grad(-(label * log_shares).sum(), proxies)
        proxies = normalize(proxies.detach() - 0.3 / number**0.5 * gradient, dim=1)
    settings = {"temperature": 0.5, "proxy_lr": 0.3, "dual_lr": 2.0, "smallest_share": 0.7, "stream_size": 20}
    adapted = build("onzeta", clip_model(), num_classes=NUM_CLASSES, **settings)
    found = torch.cat([adapted.predict(images) for images in contrasts()])

    assert len(expected) > 20
    torch.testing.assert_close(torch.stack(expected), found.exp(), rtol=0, atol=1e-4)


@pytest.mark.parametrize("cache_size", [4, 30])
def test_oga_follows_its_algorithm(cache_size: int):
    """Lists of the surest images of each class; the larger cache has more than four images for a dimension."""
    generator = torch.Generator().manual_seed(0)
    texts, features = (normalize(torch.randn(count, 6, generator=generator), dim=1) for count in (NUM_CLASSES, 80))
    model = ZeroShotClassifier(torch.nn.Identity(), texts, scale=6.0)
    kept: list[list[tuple[float, torch.Tensor]]] = [[] for _ in texts]
    adapted = build("oga", model, num_classes=NUM_CLASSES, cache_size=cache_size, likelihood_weight=0.2)
    for images in features.split(10):
        batch = images.double()
        shares = (6 * batch @ texts.double().T).softmax(1)
        for feature, share in zip(batch, shares, strict=True):
            of_class = kept[int(share.argmax())]
            of_class.append((float(-(share * share.log()).sum()), feature))
            of_class.sort(key=lambda each: each[0])
            del of_class[cache_size:]
        means = [
            sum(each for _, each in of_class) / cache_size if len(of_class) > 1 else text
            for of_class, text in zip(kept, texts.double(), strict=True)
        ]
        centred = torch.stack([each - mean for of, mean in zip(kept, means, strict=True) for _, each in of])
        covariance, count, width = centred.T.cov(), len(centred), centred.shape[1]
        ridge = ((count - 1) * covariance + covariance.trace() * torch.eye(width)) / width
        precision = torch.linalg.pinv(ridge if count <= 4 * width else covariance)
        apart = batch[:, None] - torch.stack(means)
        distances = torch.einsum("bkd,de,bke->bk", apart, precision, apart)
        expected = (shares.log() - 0.2 * distances / 2).softmax(1)
        torch.testing.assert_close(expected.float(), adapted.predict(images).softmax(1), rtol=0, atol=1e-3)


def test_ecalp_follows_its_algorithm():
    """Labels over a dense matrix that is built anew for each image, without sparse tensors or kept neighbours."""
    features, texts = image_features()
    relevance, kept = normalize(texts.var(0), dim=0), torch.zeros(0, NUM_CLASSES)
    adapted = build("ecalp", clip_model(), num_classes=NUM_CLASSES, num_texts=2, num_images=4, neighbour_share=0.9)
    found = torch.cat([adapted.predict(images) for images in contrasts()])
    for number in range(1, len(features) + 1):
        nodes = features[[*range(number), number - 1]]
        # The earlier of two images is weighted.
        weighted = normalize(nodes * relevance, dim=1) @ nodes.T
        similarities = weighted.triu() + weighted.triu(1).T
        graph = torch.zeros(NUM_CLASSES + len(nodes), NUM_CLASSES + len(nodes))
        for row in range(len(nodes)):
            for column in (nodes[row] @ texts.T).argsort(descending=True)[:2].tolist():
                graph[NUM_CLASSES + row, column] = float(nodes[row] @ texts[column]) ** 10
            for column in similarities[row].argsort(descending=True, stable=True)[:4].tolist():
                graph[NUM_CLASSES + row, NUM_CLASSES + column] = float(similarities[row, column]) ** 10
        graph = graph + graph.T
        scales = 1 / (graph.sum(1).sqrt() + 1e-6)
        rows = (scales[:, None] * graph * scales)[NUM_CLASSES:]
        start = labels = torch.cat([kept, torch.zeros(len(nodes) - len(kept), NUM_CLASSES)])
        for _ in range(3):
            labels = 0.9 * rows @ torch.cat([torch.eye(NUM_CLASSES), labels]) + 0.1 * start
        kept = one_hot(labels[:-1].argmax(1), NUM_CLASSES) * labels[:-1] / 5
        torch.testing.assert_close(labels[-1] * 10_000, found[number - 1], rtol=1e-3, atol=0.5)


def test_stata_follows_its_algorithm():
    """From the anchors on, Gaussians and assignments alternate; an assignment has three parts, five times a turn."""
    features, texts = (each.double() for each in image_features())
    num_images = len(features)
    zero_shot = 6 * features @ texts.T
    shares = zero_shot.softmax(1)
    anchor = sum(
        shares[row, label] * (features[row] - texts[label]) ** 2
        for row in range(num_images)
        for label in range(NUM_CLASSES)
    ) / len(features)  # fmt: skip
    pairs = [
        (row, other) for row in range(num_images) for other in (features @ features[row]).argsort(descending=True)[1:3]
    ]
    means, variances = list(texts), [anchor] * NUM_CLASSES
    for turn in range(4):
        for label in range(NUM_CLASSES if turn else 0):
            count = int((shares.argmax(1) == label).sum())
            weights = shares[:, label, None] / shares[:, label].sum()
            mean = count * normalize((weights * features).sum(0), dim=0) + 2 * texts[label]
            means[label] = normalize(mean, dim=0)
            spread = (weights * (features - means[label]) ** 2).sum(0)
            from_anchor = anchor + (texts[label] - means[label]) ** 2
            variances[label] = (count * spread + 2 * from_anchor) / (count + 2)
        densities = torch.stack(
            [Normal(*each).log_prob(features).sum(1) for each in zip(means, map(torch.sqrt, variances), strict=True)], 1
        )
        for _ in range(5):
            similar = torch.zeros_like(shares)
            for row, other in pairs:
                similar[row] += features[row] @ features[other] * shares[other]
                similar[other] += features[row] @ features[other] * shares[row]
            shares = (zero_shot + densities / 50 + 0.5 * similar / 4).softmax(1)

    settings = {"anchor_weight": 2.0, "neighbour_weight": 0.5, "num_neighbours": 2, "num_turns": 3}
    found = build("stata", clip_model(), num_classes=NUM_CLASSES, **settings).predict(torch.cat(contrasts()))
    assert min(torch.bincount(shares.argmax(1), minlength=NUM_CLASSES)) == 0
    torch.testing.assert_close(found.softmax(1), shares.float(), rtol=0, atol=1e-5)


def test_stata_falls_back_on_the_texts():
    """Where the text of a class counts for very many images, the Gaussians are the anchors, also of equal images."""
    images = torch.full((4, 3, 16, 16), 0.5)
    features, texts = features_of(images), normalize(clip_model().head.weight.detach(), dim=1)
    squares = (features[:, None] - texts) ** 2
    anchor = ((6 * features @ texts.T).softmax(1)[:, :, None] * squares).sum((0, 1)) / len(features)
    expected = 6 * features @ texts.T - (squares / anchor).sum(2) / 100
    settings = {"anchor_weight": 1e9, "neighbour_weight": 0.0}
    method = build("stata", clip_model(), num_classes=NUM_CLASSES, **settings)

    torch.testing.assert_close(method.predict(images).softmax(1), expected.softmax(1), rtol=0, atol=1e-3)


def test_stata_predicts_a_single_image():
    """An image without another to be joined to is predicted by its text and its Gaussians."""
    image = contrasts()[0][:1]
    alone, apart = (
        build("stata", clip_model(), num_classes=NUM_CLASSES, num_neighbours=number).predict(image) for number in (3, 1)
    )
    torch.testing.assert_close(alone, apart)
    assert alone.isfinite().all()


def batclip_loss(logits: torch.Tensor, features: torch.Tensor, texts: torch.Tensor) -> torch.Tensor:
    """Return the loss of BATCLIP, class by class."""
    labels = logits.argmax(1)
    means = {label: features[labels == label].mean(0) for label in sorted(set(labels.tolist()))}
    shares = logits.softmax(1)
    entropy = -(shares * shares.log()).sum(1).mean()
    projection = sum(mean @ texts[label] for label, mean in means.items()) / len(means)
    pairs = [(one, other) for one in means for other in means if one != other]
    return entropy - projection - sum(1 - cosine_similarity(means[one], means[other], dim=0) for one, other in pairs)


def clip_of_layer_norms() -> ZeroShotClassifier:
    """Return a CLIP with a layer norm in each tower, whose images differ in class."""
    torch.manual_seed(0)
    prompts = SmallPrompts()
    tower = nn.Sequential(nn.Flatten(), nn.LayerNorm(3 * 16 * 16), nn.Linear(3 * 16 * 16, 16))
    texts = prompts(prompts.get_buffer("context")).detach()
    return ZeroShotClassifier(tower, texts, scale=6.0, prompts=prompts).eval()


def test_batclip_follows_its_formula():
    """Steps by hand on the norm layers of both towers; predictions are from before each step."""
    model = clip_of_layer_norms()
    prompts = model.prompts
    norms = [model.tower[1], prompts.norm]
    parameters = [each for layer in norms for each in layer.parameters()]
    steps = torch.optim.AdamW(parameters, lr=0.02, weight_decay=0.1)
    expected = []

    def parts(images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        features, texts = model.tower(images), prompts(prompts.get_buffer("context"))
        return 6 * normalize(features, dim=1) @ texts.T, features, texts

    for images in contrasts():
        logits, *features = parts(images)
        steps.zero_grad()
        batclip_loss(logits, *features).backward()
        steps.step()
        expected.append(logits.detach())
    adapted = build("batclip", clip_of_layer_norms(), num_classes=NUM_CLASSES, lr=0.02, weight_decay=0.1)
    found = [adapted.predict(images) for images in contrasts()]

    assert all(len(set(logits.argmax(1).tolist())) > 2 for logits in found)
    torch.testing.assert_close(expected, found, rtol=0, atol=1e-3)
    # What is predicted without an update is the network's, with the texts that it has by now.
    torch.testing.assert_close(parts(images)[0].detach(), adapted.predict_unadapted(images), rtol=0, atol=1e-3)
    assert sum(each.numel() for each in parameters) == count_adapted_parameters(adapted)


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

    for method in ("tpt", "batclip"):
        with pytest.raises(AdaptationError, match=rf"\b{method}\b.*\bViT-B-16\b"):
            build(method, bare, num_classes=NUM_CLASSES)
    build("tda", bare, num_classes=NUM_CLASSES)


@pytest.mark.parametrize("method", [name for name, entry in METHODS.items() if entry.needs == "clip"])
def test_another_number_of_classes_is_refused(method: str):
    """Thresholds in shares of the largest entropy would be wrong."""
    with pytest.raises(AdaptationError, match=rf"\b{NUM_CLASSES}\b.*\b{method}\b.*\b{NUM_CLASSES + 3}\b"):
        build(method, clip_model(), num_classes=NUM_CLASSES + 3)
