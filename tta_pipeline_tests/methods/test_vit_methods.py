"""Methods that need a ViT, held against second implementations that know its parts."""

import itertools
import math
from copy import deepcopy

import pytest
import torch
from torch import nn
from torchvision.models import VisionTransformer
from torchvision.models.resnet import Bottleneck, ResNet

from tta_pipeline.errors import AdaptationError
from tta_pipeline.evaluation.what_adapts import count_adapted_parameters
from tta_pipeline.methods import build
from tta_pipeline.methods.domains import Domain, InputMoments
from tta_pipeline.methods.gradient_free.cma_es import CmaEs
from tta_pipeline.methods.method import Method
from tta_pipeline.methods.tokens import ClassTokens, Tokens
from tta_pipeline_tests.methods.models import NUM_CLASSES, contrasts, source_batches, vit_model
from tta_pipeline_tests.methods.test_contract import predictions


def stream() -> list[torch.Tensor]:
    """Return a few batches."""
    return contrasts(num_batches=4, batch_size=6)


def embedded(model: VisionTransformer, images: torch.Tensor) -> torch.Tensor:
    """Return the tokens (B, 17, 16) that enter the first block."""
    patches = model.conv_proj(images).flatten(2).transpose(1, 2)
    return torch.cat([model.class_token.expand(len(images), -1, -1), patches], 1) + model.encoder.pos_embedding


def classified(model: VisionTransformer, tokens: torch.Tensor) -> torch.Tensor:
    """Return the logits of *tokens* that enter the first block."""
    for block in model.encoder.layers:
        tokens = block(tokens)
    return model.heads(model.encoder.ln(tokens)[:, 0])


def attended(model: VisionTransformer, images: torch.Tensor) -> torch.Tensor:
    """Return the attention of the class token to the patches, (B, 16), by torch's own attention."""
    tokens = embedded(model, images)
    *below, last = model.encoder.layers
    for block in below:
        tokens = block(tokens)
    inputs = last.ln_1(tokens)
    _, weights = last.self_attention(inputs, inputs, inputs, need_weights=True, average_attn_weights=True)
    return weights[:, 0, 1:]


def test_the_attention_is_that_of_the_last_block():
    """It is computed from the input of the last attention, as that computes it."""
    model = vit_model()
    tokens = Tokens(model, "test")
    expected = attended(vit_model(), stream()[0])
    model(stream()[0])

    torch.testing.assert_close(expected, tokens.class_attention(), rtol=0, atol=1e-6)
    assert expected.std() > 0.01


def test_the_attention_of_timm_is_that_of_the_last_block():
    """Also with a second token before the patches, and where query and key have norms of their own and no bias."""
    timm = pytest.importorskip("timm")
    plain = {"qk_norm": True, "qkv_bias": False}
    for name, settings in (("deit_tiny_distilled_patch16_224", {}), ("vit_tiny_patch16_224", plain)):
        model = timm.create_model(
            name, img_size=16, patch_size=4, embed_dim=16, depth=2, num_heads=2, **settings
        ).eval()
        tokens = Tokens(model, "test")
        attention = model.blocks[-1].attn
        attention.fused_attn = False
        found: list[torch.Tensor] = []
        attention.attn_drop.register_forward_hook(lambda _layer, inputs, _out, found=found: found.append(inputs[0]))
        model(stream()[0])

        expected = found[0].mean(1)[:, 0, tokens.num_prefix :]
        torch.testing.assert_close(expected, tokens.class_attention(), rtol=0, atol=1e-6)
        assert (6, 16) == expected.shape


def test_patches_that_are_left_out_are_not_seen():
    """The logits are those of the tokens that stay; whatever stands in the others changes nothing."""
    model = vit_model()
    tokens = Tokens(model, "test")
    images = stream()[0]
    kept = torch.arange(16).expand(6, -1)[:, [0, 5, 3]]
    with tokens.only(kept):
        found = model(images)
    plain = vit_model()
    expected = classified(plain, embedded(plain, images)[:, [0, 1, 6, 4]])

    torch.testing.assert_close(expected, found, rtol=0, atol=1e-5)
    torch.testing.assert_close(vit_model()(images), model(images), rtol=0, atol=0)


def entropy(logits: torch.Tensor) -> torch.Tensor:
    """Return the entropy of one row of *logits* (K,)."""
    return -(logits.softmax(0) * logits.log_softmax(0)).sum()


def plain_rem(stream: list[torch.Tensor], *, margin: float, weight: float) -> list[torch.Tensor]:
    """Return logits for each batch, with the loss summed over images and pairs one by one."""
    model = vit_model().requires_grad_(False)
    adapted = [
        parameter.requires_grad_(True)
        for block in model.encoder.layers[:3]
        for layer in (block.ln_1, block.ln_2)
        for parameter in layer.parameters()
    ]
    steps = torch.optim.Adam(adapted, lr=0.01)
    predicted = []
    for images in stream:
        tokens, order = embedded(model, images), attended(model, images).argsort(1)
        chain = [classified(model, tokens)]
        for count in (12, 8):  # of 16 patches, without a quarter and without half of them
            seen = [torch.cat([own[:1], own[1:][places[:count]]]) for own, places in zip(tokens, order, strict=True)]
            chain.append(classified(model, torch.stack(seen)))
        losses = []
        for first, second in ((0, 1), (0, 2), (1, 2)):
            for easy, hard in zip(chain[first], chain[second], strict=True):
                agrees = -(easy.detach().softmax(0) * hard.log_softmax(0)).sum()
                wrong = entropy(easy) - entropy(hard).detach() + margin * math.log(NUM_CLASSES)
                losses.append(agrees + weight * max(wrong, torch.zeros(())))
        (sum(losses) / len(images)).backward()
        steps.step()
        steps.zero_grad()
        predicted.append(chain[0].detach())
    return predicted


@pytest.mark.parametrize(("margin", "weight"), [(0.0, 1.0), (0.1, 2.0)])
def test_rem_follows_its_formula(margin: float, weight: float):
    """The logits are those of consistency and ranking written out, over updates that change them."""
    settings = {"mask_ratio": 0.25, "margin": margin, "lambda_rank": weight, "lr": 0.01}
    adapted = build("rem", vit_model(), num_classes=NUM_CLASSES, **settings)
    expected = plain_rem(stream(), margin=margin, weight=weight)

    torch.testing.assert_close(expected, predictions(adapted, stream()), rtol=0, atol=1e-4)
    assert (vit_model()(stream()[3]) - expected[3]).abs().max() > 0.01
    assert (72, 72, 24) == (adapted.num_forwards, adapted.num_backwards, adapted.num_adapted_samples)


def test_rem_without_patches_left_is_refused():
    """The error names both settings."""
    with pytest.raises(AdaptationError, match=r"\brem\b.*\bnum_predictions\b\D*\b5\b.*\bmask_ratio\b\D*\b0\.25\b"):
        build("rem", vit_model(), num_classes=NUM_CLASSES, num_predictions=5, mask_ratio=0.25)


def layers_of_class_token(model: VisionTransformer, images: torch.Tensor, prompts: torch.Tensor) -> list[torch.Tensor]:
    """Return the class token of each layer, (B, 16) each, behind the norm that comes next."""
    first, *others = embedded(model, images).unbind(1)
    tokens = torch.stack([first, *(each.expand_as(first) for each in prompts), *others], 1)
    norms = [*(block.ln_1 for block in model.encoder.layers[1:]), model.encoder.ln]
    found = []
    for block, norm in zip(model.encoder.layers, norms, strict=True):
        tokens = block(tokens)
        found.append(norm(tokens[:, 0]))
    return found


def moments(rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return mean and unbiased standard deviation of *rows*; that of one row is 0."""
    mean = sum(rows) / len(rows)
    return mean, (sum((row - mean) ** 2 for row in rows) / max(1, len(rows) - 1)).sqrt()


def source_moments(model: VisionTransformer, source_size: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return the moments of each layer's class token over the source, without prompts."""
    source = torch.cat([images for images, _ in source_batches()])[:source_size]
    return [moments(layer) for layer in layers_of_class_token(model, source, torch.zeros(0, 16))]


def fitness(logits: torch.Tensor, layers: list[torch.Tensor], wanted: list, *, weight: float) -> float:
    """Return the entropies of *logits* (B, K) plus the distance of the *layers*' moments from those *wanted*."""
    value = sum(entropy(row) for row in logits)
    for layer, both in zip(layers, wanted, strict=True):
        for own, of_source in zip(moments(layer), both, strict=True):
            value += weight * len(logits) / 64 * sum((own - of_source) ** 2)
    return float(value)


@torch.no_grad()
def plain_foa(
    stream: list[torch.Tensor], *, source_size: int, weight: float, gamma: float, alpha: float
) -> list[torch.Tensor]:
    """Return logits for each batch; only the search is not written out, which has tests of its own."""
    model = vit_model()
    wanted = source_moments(model, source_size)
    search = CmaEs(torch.zeros(32, dtype=torch.float64), step_size=0.5, population_size=5)
    generator = torch.Generator().manual_seed(0)
    best = (torch.rand(32, dtype=torch.float64, generator=generator) * 2 - 1) * math.sqrt(6 / (3 * 4 * 4 + 16))
    average, predicted = None, []
    for images in stream:
        candidates = torch.stack([*search.ask(generator), best])
        values, features = [], []
        for candidate in candidates:
            layers = layers_of_class_token(model, images, candidate.float().view(2, 16))
            values.append(fitness(model.heads(layers[-1]), layers, wanted, weight=weight))
            features.append(layers[-1])
        search.tell(candidates, torch.tensor(values))
        found = values.index(min(values))
        best = candidates[found]
        shift = 0 if average is None else gamma * (wanted[-1][0] - average)
        predicted.append(model.heads(features[found] + shift))
        mean = torch.cat(features).mean(0)
        average = mean if average is None else alpha * mean + (1 - alpha) * average
    return predicted


@pytest.mark.parametrize(
    ("source_size", "weight", "gamma", "alpha"), [(50_000, 0.4, 1.0, 0.1), (20, 5.0, 0.5, 0.5)], ids=["paper", "other"]
)
def test_foa_follows_its_formula(source_size: int, weight: float, gamma: float, alpha: float):
    """The logits are those of the best candidate of each batch, shifted, and differ from those of the source model."""
    settings = {"num_prompts": 2, "population_size": 6, "step_size": 0.5}
    if source_size == 20:
        settings |= {"source_size": 20, "fitness_lambda": weight, "shift_weight": gamma, "shift_momentum": alpha}
    images = [*stream(), stream()[0][:1]]
    adapted = build("foa", vit_model(), num_classes=NUM_CLASSES, source_data=source_batches(), **settings)
    expected = plain_foa(images, source_size=source_size, weight=weight, gamma=gamma, alpha=alpha)

    torch.testing.assert_close(expected, predictions(adapted, images), rtol=0, atol=1e-4)
    assert (vit_model()(stream()[3]) - expected[3]).abs().max() > 0.01
    assert (6 * 25, 0, 0, 0) == (
        adapted.num_forwards, adapted.num_backwards, adapted.num_adapted_samples, adapted.num_updates
    )  # fmt: skip


def prompts_of(model: VisionTransformer, *, num_prompts: int) -> list[torch.Tensor]:
    """Return a list that takes in the prompts (N, D) of each forward pass from now on."""
    seen: list[torch.Tensor] = []
    model.encoder.layers[0].register_forward_pre_hook(
        lambda _block, inputs: seen.append(inputs[0][0, 1 : 1 + num_prompts].clone())
    )
    return seen


def test_foa_tries_the_best_prompts_of_the_batch_before_again():
    """The last candidate of each batch is the best of the batch before; that of the first, and after a reset, is drawn
    uniformly within Xavier's bound.
    """
    model = vit_model()
    adapted = build(
        "foa", model, num_classes=NUM_CLASSES, source_data=source_batches(), num_prompts=20, population_size=6
    )
    seen = prompts_of(model, num_prompts=20)
    values: list[float] = []
    tell = CmaEs.tell

    def heard(search: CmaEs, candidates: torch.Tensor, told: torch.Tensor) -> None:
        torch.testing.assert_close(torch.stack(seen[-6:]), candidates.view(6, 20, 16).float(), rtol=0, atol=0)
        values.extend(told.tolist())
        tell(search, candidates, told)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CmaEs, "tell", heard)
        predictions(adapted, stream())
    for batch in range(1, 4):
        before = slice(6 * batch - 6, 6 * batch)
        assert torch.equal(seen[before][values[before].index(min(values[before]))], seen[6 * batch + 5])
    adapted.reset()
    predictions(adapted, stream()[:1])

    bound = math.sqrt(6 / (3 * 4 * 4 + 16))
    assert torch.equal(seen[5], seen[-1])
    assert 0.98 * bound < seen[5].abs().max() <= bound
    assert abs(seen[5].std() - bound / math.sqrt(3)) < 0.05 * bound


def test_foa_shifts_by_the_batches_before():
    """The first batch is not shifted at all, and the second not by itself."""
    images = stream()
    settings = {"num_prompts": 2, "population_size": 6, "source_size": 20}

    def found(batches: list[torch.Tensor], **more: float) -> list[torch.Tensor]:
        model = vit_model()
        return predictions(
            build("foa", model, num_classes=NUM_CLASSES, source_data=source_batches(), **settings, **more), batches
        )

    still, shifted, all_at_once = (
        found(images[:2], shift_weight=gamma, shift_momentum=alpha) for gamma, alpha in ((0, 0.1), (1, 0.1), (1, 1))
    )
    assert torch.equal(still[0], shifted[0])
    assert torch.equal(shifted[1], all_at_once[1])
    assert (still[1] - shifted[1]).abs().max() > 0.01


@torch.no_grad()
def plain_fozo(stream: list[torch.Tensor], *, num_directions: int) -> tuple[list[torch.Tensor], list[float]]:
    """Return logits for each batch, and the distance of the candidates after each."""
    model, generator = vit_model(), torch.Generator().manual_seed(0)
    wanted = source_moments(model, 50_000)
    prompts = (torch.rand(3, 16, generator=generator) * 2 - 1) * math.sqrt(6 / (3 * 4 * 4 + 16))
    scale, rate, mean_loss, average = 0.5, 0.08, None, None
    predicted, scales = [], []
    for images in stream:
        shift = 0 if average is None else wanted[-1][0] - average
        step, found, features = torch.zeros(3, 16), {}, []
        for _ in range(num_directions):
            direction = torch.randn(3, 16, generator=generator)
            both = []
            for sign in (1, -1):
                layers = layers_of_class_token(model, images, prompts + sign * scale * direction)
                logits = model.heads(layers[-1] + shift)
                both.append(fitness(logits, layers, wanted, weight=0.4))
                found[both[-1]] = logits
                features.append(layers[-1])
            step += (both[0] - both[1]) / (2 * scale) * direction / num_directions
        best = min(found)
        predicted.append(found[best])
        mean_loss = best if mean_loss is None else 0.9 * mean_loss + 0.1 * best
        scale, rate = (0.5, 0.1) if best > 1.05 * mean_loss else (max(0.9 * scale, 0.2), 0.7 * rate + 0.1)
        scales.append(scale)
        prompts -= rate * step
        mean = 2 * torch.cat(features).mean(0)
        average = mean if average is None else 0.1 * mean + 0.9 * average
    return predicted, scales


@pytest.mark.parametrize("num_directions", [1, 2])
def test_fozo_follows_its_formula(num_directions: int):
    """Prompts move against the slope between two candidates, whose distance shrinks until a loss rises."""
    first, second, third, fourth = stream()
    images = [first, second, torch.cat([third, first]), fourth, first[:1]]
    settings = {"source_data": source_batches(), "num_directions": num_directions}
    adapted = build("fozo", vit_model(), num_classes=NUM_CLASSES, **settings)
    expected, scales = plain_fozo(images, num_directions=num_directions)

    torch.testing.assert_close(expected, predictions(adapted, images), rtol=0, atol=1e-4)
    assert [0.45, 0.405, 0.5, 0.45, 0.405] == pytest.approx(scales)
    assert 2 * num_directions * 31 == adapted.num_forwards


class PlainZoa:
    """A ViT whose middle norm layers hold the source's values, plus a mixture of stored differences and a remainder."""

    def __init__(self) -> None:
        self.model, self.generator = vit_model().requires_grad_(False), torch.Generator().manual_seed(0)
        self.wanted = source_moments(self.model, 50_000)
        self.places = [
            values
            for block in self.model.encoder.layers[1:3]
            for layer in (block.ln_1, block.ln_2)
            for values in layer.parameters()
        ]
        self.origin = torch.cat(self.places)
        self.stored, self.weights, self.remainder = [self.origin * 0], torch.zeros(1), self.origin * 0
        self.dropped: list[int] = []

    def difference(self, weights: torch.Tensor, remainder: torch.Tensor) -> torch.Tensor:
        """Return the difference from the source's values."""
        shares = (10 * weights).softmax(0)
        return sum(share * each for share, each in zip(shares, self.stored, strict=True)) + remainder

    def passed(self, images: torch.Tensor, weights: torch.Tensor, remainder: torch.Tensor) -> tuple:
        """Return loss and features with these parameters."""
        for place, values in zip(
            self.places, (self.origin + self.difference(weights, remainder)).split(16), strict=True
        ):
            place.copy_(values)
        layers = layers_of_class_token(self.model, images, torch.zeros(0, 16))
        gaps = [
            ((own - of_source) ** 2).mean()
            for layer, both in zip(layers, self.wanted, strict=True)
            for own, of_source in zip(moments(layer), both, strict=True)
        ]
        logits = self.model.heads(layers[-1])
        return sum(entropy(row) for row in logits) / len(logits) + 30 * sum(gaps) / len(layers), layers[-1]

    def store(self) -> None:
        """Store the present difference without changing it; of more than three, the earlier of two alike goes first."""
        present = self.difference(self.weights, self.remainder)
        if len(self.stored) > 3:
            pairs = itertools.combinations(range(1, len(self.stored)), 2)
            first, _ = max(pairs, key=lambda pair: alike(*(self.stored[number] for number in pair)))
            del self.stored[first]
            self.weights = torch.cat([self.weights[:first], self.weights[first + 1 :]])
            self.dropped.append(first)
            self.remainder = present - self.difference(self.weights, 0)
        ratio = max(part.abs().mean() for part in self.remainder.split(16)) / 0.01
        grown = (10 * self.weights).exp().sum().log() + (ratio - 1).log() if ratio > 1 else -torch.inf
        self.weights = torch.cat([self.weights, torch.tensor([max(self.weights.max(), grown / 10)])])
        self.stored.append(present)
        self.remainder = present - self.difference(self.weights, 0)

    def step(self, images: torch.Tensor, loss: torch.Tensor) -> None:
        """Step against the slope along a random direction."""
        along = []
        for values, scale in ((self.weights, 0.05), (self.remainder, 0.02)):
            sizes = (torch.rand(len(values), generator=self.generator) + 1) / 2
            is_negative = torch.bernoulli(torch.full((len(values),), 0.5), generator=self.generator) == 1
            along.append(scale * torch.where(is_negative, -sizes, sizes))
        slope = self.passed(images, self.weights + along[0], self.remainder + along[1])[0] - loss
        self.remainder = self.remainder - 0.01 * (slope / along[1] + 0.4 * self.remainder)
        if len(self.stored) > 1:
            self.weights = self.weights * (1 - 0.01 * 0.1) - 0.01 * (slope / along[0]).sign()

    def predict(self, stream: list[torch.Tensor], *, threshold: float) -> list[torch.Tensor]:
        """Return logits for each batch."""
        average, domain, predicted = None, None, []
        for images in stream:
            loss, features = self.passed(images, self.weights, self.remainder)
            shift = 0 if average is None else self.wanted[-1][0] - average
            predicted.append(self.model.heads(features + shift))
            patches = embedded(self.model, images)[:, 1:].flatten(0, 1)
            batch = patches.mean(0), patches.var(0)
            if domain and apart(domain, batch) > threshold:
                self.store()
                average = domain = None
            domain = follow(follow(domain, batch), batch)
            self.step(images, loss)
            average = features.mean(0) if average is None else 0.9 * average + 0.1 * features.mean(0)
        return predicted


def alike(one: torch.Tensor, other: torch.Tensor) -> float:
    """Return the mean cosine between the parameters of two differences."""
    return float(torch.cosine_similarity(one.view(-1, 16), other.view(-1, 16)).mean())


def test_zoa_follows_its_formula():
    """Norm layers move against slopes, as a mixture to which another domain adds what is known by then."""
    batches, plain = contrasts(num_batches=7, batch_size=8), PlainZoa()
    stream = [each + light for each, light in zip(batches, (0.5, 0.5, 0, 0.5, 0, 0.5, 0.5), strict=True)]
    adapted = build(
        "zoa", vit_model(), num_classes=NUM_CLASSES, preset="imagenet_vit", source_data=source_batches(), lr=0.01,
        min_domain_batch=8, shift_threshold=0.4, max_domains=3,
    )  # fmt: skip

    # a slope is a difference of losses over 0.02, which magnifies how sums are rounded
    torch.testing.assert_close(plain.predict(stream, threshold=0.4), predictions(adapted, stream), rtol=0, atol=1e-3)
    assert ([2], 2 * 56) == (plain.dropped, adapted.num_forwards)
    assert plain.remainder.abs().max() > 0.01


def test_zoa_adapts_the_norm_layers_in_the_middle_of_a_resnet():
    """Not the first block, the last stage, or what is added to a shortcut; a frozen layer may be named instead."""
    network = ResNet(Bottleneck, [2, 1, 1, 1], num_classes=NUM_CLASSES)
    settings = {"num_classes": NUM_CLASSES, "source_data": source_batches(num_batches=1)}
    build("zoa", network, **settings)
    adapted = {name.rpartition(".")[0] for name, each in network.named_parameters() if each.requires_grad}
    build("zoa", network, frozen_layers=["layer2"], **settings)

    assert {f"{block}.{norm}" for block in ("layer1.1", "layer2.0", "layer3.0") for norm in ("bn1", "bn2")} == adapted
    assert network.bn1.weight.requires_grad
    assert not network.layer2[0].bn1.weight.requires_grad


def distance(one: tuple[torch.Tensor, torch.Tensor], other: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """Return how far two pairs of mean and standard deviation are apart."""
    return sum(((mine - its) ** 2).sum().sqrt() for mine, its in zip(one, other, strict=True))


def plain_dpcore(stream: list[torch.Tensor], *, steps: int, tau: float, rho: float, alpha: float) -> list[torch.Tensor]:
    """Return logits for each batch, with the elements of the coreset one by one."""
    model, generator = vit_model().requires_grad_(False), torch.Generator().manual_seed(0)
    first = (torch.rand(2, 16, generator=generator) * 2 - 1) * math.sqrt(6 / (3 * 4 * 4 + 16))

    def features(images: torch.Tensor, prompts: torch.Tensor) -> torch.Tensor:
        return layers_of_class_token(model, images, prompts)[-1]

    source = moments(features(torch.cat([images for images, _ in source_batches()])[:20], torch.zeros(0, 16)))

    def learn(images: torch.Tensor, prompts: torch.Tensor, steps: int) -> tuple[torch.Tensor, torch.Tensor, tuple]:
        adapted = prompts.clone().requires_grad_(True)
        optimizer = torch.optim.AdamW([adapted], lr=0.1, weight_decay=0.01)
        for _ in range(steps):
            found = features(images, adapted)
            optimizer.zero_grad()
            distance(moments(found), source).backward()
            optimizer.step()
        return model.heads(found).detach(), adapted.detach(), moments(found.detach())

    coreset, predicted = [], []
    for images in stream:
        raw = moments(features(images, torch.zeros(0, 16)))
        weights = torch.tensor([-distance(raw, (mean, deviation)) / tau for mean, deviation, _ in coreset]).softmax(0)
        mixed = sum(weight * prompts for weight, (_, _, prompts) in zip(weights, coreset, strict=True))
        if coreset and distance(moments(features(images, mixed)), source) < rho * distance(raw, source):
            logits, prompts, (mean, deviation) = learn(images, mixed, 1)
            for element, share in zip(coreset, alpha * weights, strict=True):
                element[0] += share * (mean - element[0])
                element[1] += share * (deviation - element[1]).clamp(min=0)
                element[2] += share * (prompts - element[2])
        else:
            logits, prompts, _ = learn(images, first, steps)
            coreset.append([*raw, prompts])
        predicted.append(logits)
    return predicted


def red_and_blue() -> list[torch.Tensor]:
    """Return red and blue batches in turns."""
    colours = torch.eye(3)[[0, 2]].view(2, 3, 1, 1)
    return [images / 2 * colours[number % 2] for number, images in enumerate(contrasts(num_batches=6, batch_size=8))]


def adapted_dpcore(**settings: float) -> Method:
    """Return DPCore with two prompts, on a small ViT."""
    return build(
        "dpcore", vit_model(), num_classes=NUM_CLASSES, source_data=source_batches(), num_prompts=2, **settings
    )


def test_dpcore_follows_its_formula():
    """The logits are those of prompts that are learned and mixed one by one."""
    expected = plain_dpcore(red_and_blue(), steps=3, tau=0.5, rho=0.95, alpha=0.5)
    settings = {"temperature": 0.5, "reuse_threshold": 0.95, "coreset_rate": 0.5, "source_size": 20}
    adapted = adapted_dpcore(steps=3, **settings)

    torch.testing.assert_close(expected, predictions(adapted, red_and_blue()), rtol=0, atol=1e-3)
    assert adapted.num_updates in range(10, 18)  # some prompts are new, and some are not
    assert (vit_model()(red_and_blue()[5]) - expected[5]).abs().max() > 0.01


def test_dpcore_learns_prompts_once_for_each_domain():
    """A domain that comes back takes one step from its own prompts, and not twenty from new ones."""
    adapted, taken = adapted_dpcore(steps=20, temperature=0.1, reuse_threshold=0.9), [0]
    for images in red_and_blue():
        adapted.predict(images)
        taken.append(adapted.num_updates)

    assert [20, 20, 1, 1, 1, 1] == [after - before for before, after in itertools.pairwise(taken)]
    assert 8 * (1 + 20) + 8 * (2 + 20) + 4 * 8 * 2 == adapted.num_forwards
    assert 2 * 16 == count_adapted_parameters(adapted)


def test_an_episodic_dpcore_remembers_no_domain():
    """Each batch is predicted as if it were the first."""
    settings = {"steps": 20, "temperature": 0.1, "reuse_threshold": 0.9}  # with which the third batch would reuse
    again, fresh = adapted_dpcore(episodic=True, **settings), adapted_dpcore(**settings)

    torch.testing.assert_close(fresh.predict(red_and_blue()[2]), predictions(again, red_and_blue()[:3])[2])


class Int8Linear(nn.Module):
    """A linear layer with weights of eight bits and one scale for each output; it has no parameter to adapt."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        scales = layer.weight.detach().abs().amax(1, keepdim=True) / 127
        self.register_buffer("scales", scales)
        self.register_buffer("weight", (layer.weight.detach() / scales).round().to(torch.int8))
        self.register_buffer("bias", layer.bias.detach().clone())

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return the outputs in float32."""
        return nn.functional.linear(inputs, self.get_buffer("weight") * self.get_buffer("scales"), self.bias)


def test_foa_adapts_a_quantised_vit():
    """It takes forward passes alone, so that weights may be integers; the classifier stays a linear layer."""
    model = vit_model()
    for block in model.encoder.layers:
        block.mlp[0], block.mlp[3] = Int8Linear(block.mlp[0]), Int8Linear(block.mlp[3])
    source = predictions(build("source", deepcopy(model), num_classes=NUM_CLASSES), stream())
    settings = {"num_prompts": 2, "population_size": 6, "step_size": 0.5, "source_size": 20}

    adapted = build("foa", model, num_classes=NUM_CLASSES, source_data=source_batches(), **settings)
    found = predictions(adapted, stream())

    assert all(each.isfinite().all() for each in found)
    assert max(float((one - other).abs().max()) for one, other in zip(source, found, strict=True)) > 0.01
    assert torch.int8 == model.encoder.layers[0].mlp[0].weight.dtype


def test_prompts_of_timm_stand_behind_the_prefix():
    """The logits are those of the model on tokens with the prompts between, and after that those without."""
    timm = pytest.importorskip("timm")
    model = timm.create_model(
        "vit_tiny_patch16_224", img_size=16, patch_size=4, embed_dim=16, depth=2, num_heads=2, num_classes=NUM_CLASSES
    ).eval()
    before = model(stream()[0])
    prompts = torch.randn(3, 16, generator=torch.Generator().manual_seed(1))
    tokens = model._pos_embed(model.patch_embed(stream()[0]))
    tokens = torch.cat([tokens[:, :1], prompts.expand(6, -1, -1), tokens[:, 1:]], 1)
    expected = model.forward_head(model.norm(model.blocks(tokens)))
    its_tokens = Tokens(model, "test")
    with its_tokens.prompted(prompts):
        found = model(stream()[0])

    torch.testing.assert_close(expected, found, rtol=0, atol=1e-5)
    torch.testing.assert_close(before, model(stream()[0]), rtol=0, atol=0)
    assert (before - found).abs().max() > 1e-3
    assert 16 == its_tokens.width


def test_class_tokens_of_timm_are_behind_the_next_norm():
    """They are what the first norm of the block that follows makes of them, and patches are counted in pixels."""
    timm = pytest.importorskip("timm")
    model = timm.create_model(
        "vit_tiny_patch16_224", img_size=16, patch_size=(4, 2), embed_dim=16, depth=3, num_heads=2
    ).eval()
    tokens = Tokens(model, "test")
    class_tokens = ClassTokens(tokens.attentions[1:])
    behind = model._pos_embed(model.patch_embed(stream()[0]))
    expected = []
    for block, following in zip(model.blocks[:-1], model.blocks[1:], strict=True):
        behind = block(behind)
        expected.append(following.norm1(behind[:, 0]))
    model(stream()[0])

    torch.testing.assert_close(expected, class_tokens.latest(), rtol=0, atol=1e-5)
    assert 8 == tokens.patch_area


def test_foa_without_a_source_image_is_refused():
    """The error says what is missing."""
    with pytest.raises(AdaptationError, match=r"\bsource_data\b.*\bfoa\b"):
        build("foa", vit_model(), num_classes=NUM_CLASSES, source_data=[])


def test_a_vit_without_a_class_token_is_refused():
    """It has patches, but nothing that attends to them for the class."""
    timm = pytest.importorskip("timm")
    model: nn.Module = timm.create_model(
        "vit_tiny_patch16_224", img_size=16, patch_size=4, embed_dim=16, depth=2, num_heads=2, class_token=False,
        global_pool="avg", num_classes=NUM_CLASSES,
    )  # fmt: skip
    with pytest.raises(AdaptationError, match=r"\bVisionTransformer\b.*\brem\b.*\bViT\b"):
        build("rem", model, num_classes=NUM_CLASSES)


class PlainImse:
    """A ViT of eight blocks whose weights are products of parts, which are put into it before each pass."""

    def __init__(self, *, weight: float) -> None:
        self.model = vit_model(8).requires_grad_(False)
        names = ("self_attention.in_proj_weight", "self_attention.out_proj.weight", "mlp.0.weight", "mlp.3.weight")
        places = [f"encoder.layers.encoder_layer_{block}.{name}" for block in range(6) for name in names]
        self.parts = {name: torch.linalg.svd(self.model.get_parameter(name), full_matrices=False) for name in places}
        self.values = {name: part.S.clone().requires_grad_(True) for name, part in self.parts.items()}
        self.weight = weight
        self.start_steps()
        self.inputs: dict[str, torch.Tensor] = {}
        self.bases: dict[str, torch.Tensor] = {}
        for top in (6, 7):
            block = self.model.encoder.layers[top]
            for part, layer in {"in_proj": block.self_attention, "mlp.0": block.mlp[0], "mlp.3": block.mlp[3]}.items():
                name, its = f"{top}.{part}", layer.in_proj_weight if part == "in_proj" else layer.weight
                self.bases[name] = torch.linalg.svd(its, full_matrices=False).Vh
                layer.register_forward_pre_hook(lambda _, given, name=name: self.inputs.update({name: given[0]}))

    def start_steps(self) -> None:
        """Start the optimiser over."""
        self.steps = torch.optim.Adam(self.values.values(), lr=0.05)

    def predict(self, images: torch.Tensor) -> torch.Tensor:
        """Return logits (B, K)."""
        weights = {name: u @ self.values[name].diag() @ v for name, (u, _, v) in self.parts.items()}
        return torch.func.functional_call(self.model, weights, (images,))

    def descend(self, logits: torch.Tensor, chosen: list[int]) -> None:
        """Add the gradients of the loss, whose entropies are those of the *chosen*."""
        spreads = []
        for name, basis in self.bases.items():
            tokens = self.inputs[name].flatten(0, 1)
            used = tokens / tokens.norm(dim=1, keepdim=True) @ basis.T
            spreads.append(used.std(0).sort().values[:-1].mean())
        entropies = [entropy(logits[number]) for number in chosen]
        (sum(entropies) / max(len(chosen), 1) - self.weight * sum(spreads) / 2).backward()

    def copies(self) -> dict[str, torch.Tensor]:
        """Return the singular values."""
        return {name: values.detach().clone() for name, values in self.values.items()}

    def put(self, copies: dict[str, torch.Tensor]) -> None:
        """Set the singular values."""
        for name, values in self.values.items():
            values.data.copy_(copies[name])

    def step(self, images: torch.Tensor) -> torch.Tensor:
        """Return logits from before a step from above."""
        before, logits = self.copies(), self.predict(images)
        self.descend(logits, chosen := sure(logits))
        length = torch.cat([values.grad for values in self.values.values()]).norm()
        self.put({name: before[name] + 0.05 * values.grad / length for name, values in self.values.items()})
        self.steps.zero_grad()
        above = self.predict(images)
        self.descend(above, [number for number in chosen if number in sure(above)])
        self.put(before)
        self.steps.step()
        self.steps.zero_grad()
        return logits.detach()

    def normals(self, images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return mean and variance of the patches that enter the first block."""
        patches = embedded(self.model, images)[:, 1:].flatten(0, 1)
        return patches.mean(0), patches.var(0)


def sure(logits: torch.Tensor) -> list[int]:
    """Return the numbers of the rows that are sure."""
    return [number for number, row in enumerate(logits) if entropy(row) < 0.9 * math.log(NUM_CLASSES)]


def apart(*domains: tuple[torch.Tensor, torch.Tensor]) -> float:
    """Return the sum of the divergences between two domains' normal distributions, in both directions."""
    one, other = (torch.distributions.Normal(mean, variance.sqrt()) for mean, variance in domains)
    divergence = torch.distributions.kl_divergence
    return float((divergence(one, other) + divergence(other, one)).mean())


def follow(domain: tuple | None, batch: tuple) -> tuple:
    """Return the *domain* after a *batch*."""
    return tuple(0.8 * old + 0.2 * new for old, new in zip(domain, batch, strict=True)) if domain else batch


def test_a_domain_follows_the_channels_of_its_batches():
    """Mean and variance are those over images and positions, wherever the channels are."""
    images, domain = torch.rand(2, 4, 3, 5, 6), Domain(torch.device("cpu"))
    layer = nn.BatchNorm2d(3)
    kept = InputMoments(layer)
    for batch in images:
        layer(batch)
        domain.follow(kept.latest())
    rows = images.transpose(1, 2).flatten(2)

    assert domain.moments is not None
    first, second = zip(rows.mean(2), rows.var(2), strict=True)
    torch.testing.assert_close(torch.stack(follow(first, second)), domain.moments)


def plain_imse(stream: list[torch.Tensor], *, threshold: float, weight: float) -> tuple[list[torch.Tensor], list[int]]:
    """Return logits for each batch, and the domains that were taken up; the source is 0."""
    plain, domain = PlainImse(weight=weight), None
    for images, _ in source_batches():
        domain = follow(domain, plain.normals(images))
    stored, taken, predicted, domain = [(domain, plain.copies())], [], [], None
    for images in stream:
        batch = plain.normals(images)
        if domain and apart(domain, batch) > threshold:
            stored.append((domain, plain.copies()))
            distances = [apart(known, batch) for known, _ in stored]
            taken.append(distances.index(min(distances)))
            plain.put(stored[taken[-1]][1])
            plain.start_steps()
            domain = None
        domain = follow(domain, batch)
        predicted.append(plain.step(images))
    return predicted, taken


def test_imse_follows_its_formula():
    """Singular values adapt; where the images change, those of the domain most like them are taken up again."""
    dark, bright = contrasts(num_batches=2, batch_size=8), [b + 0.5 for b in contrasts(num_batches=2, batch_size=8)]
    stream = [*dark, *bright, *dark]
    method = build(
        "imse", vit_model(8), num_classes=NUM_CLASSES, source_data=source_batches(), lr=0.05, e_margin=0.9,
        diversity_weight=2.0, shift_threshold=1.0,
    )  # fmt: skip
    expected, taken = plain_imse(stream, threshold=1.0, weight=2.0)

    torch.testing.assert_close(expected, predictions(method, stream), rtol=0, atol=1e-4)
    assert [0, 1] == sorted(taken)
