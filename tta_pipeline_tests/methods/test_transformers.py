"""Every method on ViT, DeiT, Swin and ConvNeXt of timm and torchvision: it runs, or is refused by name."""

from collections.abc import Callable
from copy import deepcopy
from functools import cache, partial
from typing import Any

import pytest
import torch
from torch import nn
from torchvision.models import ConvNeXt, SwinTransformer, VisionTransformer, get_model
from torchvision.models.convnext import CNBlockConfig

from tta_pipeline.errors import AdaptationError
from tta_pipeline.methods import METHODS, build
from tta_pipeline.methods.affine_parameters import select_affine_parameters
from tta_pipeline.methods.gradient_method import GradientMethod
from tta_pipeline.methods.norm_layers import NORM_LAYERS
from tta_pipeline_tests.methods.models import ADDED, NUM_CLASSES, REFUSALS
from tta_pipeline_tests.methods.test_contract import NEED_BATCH_NORM, QUICK

timm = pytest.importorskip("timm")

SIZE = 32
OF_TIMM = partial(timm.create_model, img_size=SIZE, num_classes=NUM_CLASSES)
VIT = {"patch_size": 8, "embed_dim": 16, "depth": 4, "num_heads": 2}
STAGES = {"depths": (1, 1, 2, 1), "num_heads": (1, 1, 2, 2)}
NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "timm ViT": partial(OF_TIMM, "vit_tiny_patch16_224", **VIT),
    "timm DeiT": partial(OF_TIMM, "deit_tiny_patch16_224", **VIT),
    "timm DeiT III": partial(OF_TIMM, "deit3_small_patch16_224", **VIT),
    "timm distilled DeiT": partial(OF_TIMM, "deit_tiny_distilled_patch16_224", **VIT),
    "timm Swin": partial(
        OF_TIMM, "swin_tiny_patch4_window7_224", patch_size=2, window_size=4, embed_dim=8, **STAGES
    ),
    "timm ConvNeXt": partial(
        timm.create_model, "convnext_tiny", num_classes=NUM_CLASSES, depths=STAGES["depths"], dims=(8, 8, 16, 16)
    ),
    "torchvision ViT": partial(
        VisionTransformer, image_size=SIZE, patch_size=8, num_layers=4, num_heads=2, hidden_dim=16, mlp_dim=32,
        num_classes=NUM_CLASSES,
    ),
    "torchvision Swin": partial(
        SwinTransformer, patch_size=[2, 2], embed_dim=8, depths=list(STAGES["depths"]),
        num_heads=list(STAGES["num_heads"]), window_size=[4, 4], num_classes=NUM_CLASSES,
    ),
    "torchvision ConvNeXt": partial(
        ConvNeXt, [CNBlockConfig(8, 8, 1), CNBlockConfig(8, 16, 2), CNBlockConfig(16, None, 1)],
        num_classes=NUM_CLASSES,
    ),
}  # fmt: skip
"""Small networks with random weights, each under the name of its library and family."""
EASY: dict[str, dict[str, Any]] = {
    "eta": {"e_margin": 1.0, "d_margin": 1.0},
    "asr": {"e_margin": 1.0, "d_margin": 1.0},
    "eata": {"e_margin": 1.0, "d_margin": 1.0},
    "rdumb": {"e_margin": 1.0, "d_margin": 1.0, "reset_every": 1000},
    "sar": {"e_margin": 1.0, "reset_margin": 0.0},
    "deyo": {"deyo_margin": 1.0, "plpd_threshold": -1.0},
    "sotta": {"threshold": 0.0},
}
"""What lets a method adapt on nearly any sample, and keep what it learned."""
NEED_ONE_CLASSIFIER = {
    "lame",
    "t3a",
    "neo",
    "adacontrast",
    "rmt",
    "petta",
    "zerosiam",
    "spa",
    "shot_im",
    "unient",
    "foa",
    "fozo",
    "zoa",
    "dpcore",
}
NUM_ADDED = {
    "lora": dict.fromkeys(NETWORKS, 32) | dict.fromkeys(("timm Swin", "torchvision Swin"), 46)
    | {"timm ConvNeXt": 20, "torchvision ConvNeXt": 16},
    "adapters": dict.fromkeys(NETWORKS, 16) | dict.fromkeys(("timm Swin", "torchvision Swin", "timm ConvNeXt"), 20),
}  # fmt: skip
"""Matrices and biases that are added: two for each layer with an update, four for each block with an adapter."""
LARGE = [
    "timm:vit_base_patch16_224", "timm:deit_base_patch16_224", "timm:swin_tiny_patch4_window7_224",
    "timm:convnext_tiny", "torchvision:vit_b_16", "torchvision:swin_t", "torchvision:convnext_tiny",
]  # fmt: skip


PAIRS = [
    (name, method)
    for number, method in enumerate(METHODS)
    for place, name in enumerate(NETWORKS)
    if name == "timm ViT" or (number + place) % 8 == 0
]
"""Each method on a ViT and on one of the other networks, or two, others for each method."""


def small(name: str) -> nn.Module:
    """Return the network *name*, which is sure of some images and not of others."""
    return deepcopy(_small(name))


@cache
def _small(name: str) -> nn.Module:
    torch.manual_seed(0)
    network = NETWORKS[name]().eval()
    with torch.no_grad():
        for layer in network.modules():
            if isinstance(layer, nn.Linear) and layer.out_features == NUM_CLASSES:
                layer.weight.normal_(0, 1)
            if isinstance(layer, NORM_LAYERS):
                layer.weight.uniform_(0.5, 1.5)
    return network


def images(size: int = SIZE, count: int = 6) -> torch.Tensor:
    """Return images in [0, 1] of different contrast."""
    generator = torch.Generator().manual_seed(1)
    return torch.rand(count, 3, size, size, generator=generator) * torch.rand(count, 3, 1, 1, generator=generator)


def built(method: str, network: nn.Module, *, size: int = SIZE, **settings: Any):
    """Return *method* on *network*, which takes images of *size*, with settings that let it adapt on a few images."""
    if METHODS[method].source_data != "unused":
        settings["source_data"] = [(images(size), torch.arange(6) % NUM_CLASSES)]
    settings = {"preset": "cifar", **QUICK.get(method, {}), **EASY.get(method, {}), **settings}
    return build(method, network, num_classes=NUM_CLASSES, **settings)


@pytest.mark.parametrize(("name", "method"), PAIRS)
def test_every_method_runs_on_a_transformer_or_refuses_it_by_name(name: str, method: str):
    """Its logits are finite, and parameters change where it takes gradients; else the error says what it lacks."""
    if method in NEED_BATCH_NORM:
        with pytest.raises(AdaptationError, match=rf"\bbatch norm\b.*\b{method}\b"):
            built(method, small(name))
        return
    needs = METHODS[method].needs
    if needs == "clip" or (needs == "vit" and not any(kind in name for kind in ("ViT", "DeiT"))):
        with pytest.raises(AdaptationError, match=REFUSALS[needs].format(method)):
            built(method, small(name))
        return
    if name == "timm distilled DeiT" and method in NEED_ONE_CLASSIFIER:
        with pytest.raises(AdaptationError, match=rf"\bhead_dist\b.*\b{method}\b"):
            built(method, small(name))
        return
    before = small(name).parameters()
    adapted = built(method, small(name))
    logits = [adapted.predict(images()) for _ in range(2)]

    assert all(each.isfinite().all() for each in logits)
    assert (6, NUM_CLASSES) == logits[1].shape
    assert isinstance(adapted, GradientMethod) == (adapted.num_updates > 0)
    stays = method in ("memo", "asr", "dpcore")  # two forget what they learned, and one learns prompts alone
    if isinstance(adapted, GradientMethod) and not stays:
        assert any(not torch.equal(*both) for both in zip(before, adapted.model.parameters(), strict=True))


@pytest.mark.parametrize("name", NETWORKS)
def test_norm_layers_of_a_transformer_adapt_and_nothing_else(name: str):
    """Weight and bias of each, whatever its class is called; attention, embeddings and classifier are frozen."""
    network = small(name)
    select_affine_parameters(network, "tent")
    adapted = {each for each, parameter in network.named_parameters() if parameter.requires_grad}

    assert adapted
    assert {
        f"{prefix}.{each}" for prefix, layer in network.named_modules() if "norm" in type(layer).__name__.lower()
        for each, _ in layer.named_parameters(recurse=False)
    } == adapted  # fmt: skip


@pytest.mark.parametrize("params", ADDED)
@pytest.mark.parametrize("name", NETWORKS)
def test_what_is_added_starts_as_nothing_and_alone_adapts(name: str, params: str):
    """The first predictions are the source model's; then each added part has moved, and no parameter of the model."""
    adapted = built("tent", small(name), params=params)
    with torch.no_grad():
        torch.testing.assert_close(small(name)(images()), adapted.predict(images()), rtol=0, atol=2e-5)
    adapted.predict(images())
    found = {
        each.replace("parametrizations.", "").removesuffix(".original"): value
        for each, value in adapted.model.state_dict().items()
    }
    moving = [parameter for parameter in adapted.model.parameters() if parameter.requires_grad]

    assert all(torch.equal(value, found[each]) for each, value in small(name).state_dict().items())
    assert NUM_ADDED[params][name] == len(moving)
    assert all(parameter.any() for parameter in moving)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["source", "neo", "lame", "t3a", "tent", "eata", "sar", "deyo", "rotta", "roid"])
@pytest.mark.parametrize("architecture", LARGE)
def test_networks_of_224_pixels_adapt(architecture: str, method: str):
    """At their full size, on two images."""
    library, name = architecture.split(":")
    torch.manual_seed(0)
    network = (timm.create_model if library == "timm" else get_model)(name, num_classes=NUM_CLASSES)
    adapted = built(method, network, size=224)

    assert adapted.predict(images(224, count=2)).isfinite().all()
    assert (2, NUM_CLASSES) == adapted.predict(images(224, count=2)).shape
