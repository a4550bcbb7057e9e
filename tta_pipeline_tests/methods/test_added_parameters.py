"""Low-rank updates and adapters: second implementations from the formulas, and what becomes of the model."""

from collections.abc import Callable, Mapping
from copy import deepcopy
from functools import partial

import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters
from torch.func import functional_call
from torch.nn.functional import gelu, linear

from tta_pipeline.errors import AdaptationError
from tta_pipeline.methods import build
from tta_pipeline.methods.ema import frozen_copy
from tta_pipeline.methods.method import Method
from tta_pipeline_tests.methods.models import (
    ADDED,
    NUM_CLASSES,
    batch_norm_model,
    contrasts,
    layer_norm_model,
    surer,
    vit_model,
)

LR = 0.05
BOTH = pytest.mark.parametrize("params", ADDED)


def built(params: str, model: nn.Module | None = None, **settings) -> Method:
    """Return Tent that adapts what it adds, by default to the small ViT."""
    settings = {"lr": LR, "params": params, **settings}
    return build("tent", model or vit_model(), num_classes=NUM_CLASSES, **settings)


def added(method: Method) -> dict[str, torch.Tensor]:
    """Return copies of the parameters that *method* added, by name."""
    return {
        name: parameter.detach().clone().requires_grad_()
        for name, parameter in method.model.named_parameters()
        if parameter.requires_grad
    }


def descended(predict: Callable[[torch.Tensor], torch.Tensor], parameters: Mapping[str, torch.Tensor]):
    """Return the logits for each batch before the step on its mean entropy, by SGD with momentum."""
    optimizer = torch.optim.SGD(parameters.values(), lr=LR, momentum=0.9)
    logits = []
    for images in contrasts():
        logits.append(predict(images))
        rows = logits[-1].softmax(1)
        (-(rows * rows.log()).sum() / len(rows)).backward()
        optimizer.step()
        optimizer.zero_grad()
    return [each.detach() for each in logits]


def assert_follows(expected: list[torch.Tensor], found: list[torch.Tensor]):
    """Logits agree over all batches, to 1e-4, and are not those of the source model."""
    torch.testing.assert_close(expected, found, rtol=0, atol=1e-4)
    with torch.no_grad():
        assert not torch.allclose(vit_model()(contrasts()[-1]), found[-1], rtol=0, atol=0.01)


@pytest.mark.parametrize("rank", [2, 8])
def test_lora_follows_its_formula(rank: int):
    """Each weight of attention and linear layers is W + 8 / r B A, and B and A alone take Tent's steps."""
    method, network = built("lora", lora_rank=rank), vit_model().requires_grad_(False)
    matrices = added(method)

    def updated(name: str, weight: torch.Tensor) -> torch.Tensor:
        owner, _, last = name.rpartition(".")
        up, down = (matrices.get(f"{owner}.parametrizations.{last}.0.{each}") for each in ("up", "down"))
        return weight if up is None else weight + 8 / rank * torch.einsum("or,ri->oi", up, down)

    def predict(images: torch.Tensor) -> torch.Tensor:
        weights = {name: updated(name, weight) for name, weight in network.named_parameters()}
        return functional_call(network, weights, (images,))

    expected = descended(predict, matrices)

    assert_follows(expected, [method.predict(images) for images in contrasts()])


def test_lora_starts_with_one_random_factor():
    """B is zero, and A is uniform within 1 / sqrt(inputs), drawn from the method's seed alone."""
    first, again, other = (added(built("lora", seed=seed)) for seed in (3, 3, 4))
    for name, matrix in first.items():
        if name.endswith("up"):
            assert not matrix.any()
        else:
            bound = matrix.shape[1] ** -0.5
            assert 0.9 * bound < matrix.max() <= bound
            assert 0.9 * bound < -matrix.min() <= bound
            assert not torch.equal(matrix, other[name])
        assert torch.equal(matrix, again[name])


def adapted_outputs(parts: list[torch.Tensor], _: nn.Module, __: object, outputs: torch.Tensor) -> torch.Tensor:
    """Return *outputs* through an adapter made of *parts*."""
    down, down_bias, up, up_bias = parts
    return outputs + linear(gelu(linear(outputs, down, down_bias)), up, up_bias)


def test_adapters_follow_their_formula():
    """The output h of each feed-forward network is h + U gelu(D h + d) + u, and these four alone take Tent's steps."""
    method, network = built("adapters", adapter_size=6), vit_model().requires_grad_(False)
    parts = added(method)
    for number, block in enumerate(network.encoder.layers):
        prefix = f"encoder.layers.encoder_layer_{number}.mlp.3.adapter"
        its = [parts[f"{prefix}.{part}"] for part in ("down", "down_bias", "up", "up_bias")]
        block.mlp.register_forward_hook(partial(adapted_outputs, its))
    expected = descended(network, parts)

    assert_follows(expected, [method.predict(images) for images in contrasts()])


@BOTH
def test_a_copy_has_what_was_added(params: str):
    """A teacher, or a copy of the source model, predicts as the model did, and stays when that goes on."""
    method = built(params)
    method.predict(contrasts()[0])
    copy, teacher = frozen_copy(method.model), deepcopy(method.model)
    before = method.predict(contrasts()[1])
    method.predict(contrasts()[2])

    with torch.no_grad():
        for each in (copy, teacher):
            torch.testing.assert_close(before, each(contrasts()[1]), rtol=0, atol=1e-5)
    assert not torch.allclose(before, method.predict(contrasts()[1]), rtol=0, atol=0.001)


@BOTH
def test_another_method_on_the_same_model_starts_from_the_source(params: str):
    """What the first added is replaced, so the second predicts as on a new model, and adds no second of it."""
    model = vit_model()
    for images in contrasts():
        first = built(params, model, seed=1)
        first.predict(images)
    found, fresh = built(params, model, seed=2), built(params, seed=2)

    assert [*added(fresh)] == [*added(found)]
    for images in contrasts():
        assert torch.equal(fresh.predict(images), found.predict(images))


@pytest.mark.parametrize(
    ("params", "model"), [("lora", batch_norm_model), ("adapters", batch_norm_model), ("adapters", layer_norm_model)]
)
def test_a_model_without_such_layers_is_refused(params: str, model: Callable[[], nn.Sequential]):
    """The message names the network, what asked for more of it, and what would do."""
    with pytest.raises(AdaptationError, match=rf"\bSequential\b.*\btent\b.*\b{params}\b.*\bViT, Swin\b"):
        built(params, surer(model()))


@BOTH
def test_compiled_networks_have_what_was_added(params: str):
    """The network is compiled before anything is added, and runs so, with logits as without."""
    torch._dynamo.reset()
    counters.clear()
    network, same = vit_model(), vit_model()
    for each in (network, same):
        each.encoder.layers = each.encoder.layers[:1]
    network.compile(backend="eager", dynamic=False)
    by_code, method = built(params, network), built(params, same)

    for images in contrasts(num_batches=3, batch_size=16):
        torch.testing.assert_close(method.predict(images), by_code.predict(images), rtol=0, atol=1e-4)
    assert counters["stats"]["unique_graphs"] >= 1
    torch._dynamo.reset()
