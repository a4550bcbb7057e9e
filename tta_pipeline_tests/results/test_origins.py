"""Hyperparameters are called published only where that value was published: method, kind of network, dataset."""

from collections.abc import Mapping
from typing import Any

import pytest

from tta_pipeline.benchmarks.benchmark import Benchmark
from tta_pipeline.benchmarks.resolved_experiment import find_origin
from tta_pipeline.data.datasets.dataset_files import shipped_sets
from tta_pipeline.methods import METHODS
from tta_pipeline_tests.extras.tuning.tuned import benchmark_of

RESNET = {"kind": "torchvision", "architecture": "resnet50"}
VIT = {"kind": "timm", "architecture": "vit_base_patch16_224.augreg_in21k_ft_in1k"}
CLIP = {"kind": "open_clip", "architecture": "ViT-B-16", "pretrained": "openai"}
OF_CIFAR = {"kind": "timm", "architecture": "resnet26"}


def origin(model: Mapping[str, Any], dataset: str, method: str, preset: str = "imagenet", **settings: object) -> str:
    """Return the origin of *method* with *settings* on *model* and *dataset*, whose images lie in folders."""
    source = {"kind": "folder", "root": "/images", "clean": "/images/clean"}
    experiment = {"model": "own", "method": method, "preset": preset, **settings}
    benchmark = Benchmark.model_validate(
        {
            "name": "mine", "title": "Mine", "images": source, "dataset": dataset, "image_size": 224,
            "shards": {"num_shards": 1}, "models": {"own": model}, "experiments": {"own": experiment},
        }
    )  # fmt: skip
    return find_origin(benchmark, benchmark.experiments["own"])


@pytest.mark.parametrize(
    ("model", "dataset", "method", "preset", "expected"),
    [
        (RESNET, "imagenet_c", "tent", "imagenet", "published"),
        (RESNET, "imagenet_c", "tent", "cifar", "preset"),
        (RESNET, "imagenet_c_bar", "tent", "imagenet", "preset"),
        (RESNET, "imagenet_c", "tent", "imagenet_vit", "preset"),
        (VIT, "imagenet_c", "tent", "imagenet", "preset"),
        (VIT, "imagenet_c", "tent", "imagenet_vit", "published"),
        (CLIP, "imagenet_c", "tent", "imagenet", "preset"),
        ({"kind": "timm", "architecture": "resnet50_gn.a1h_in1k"}, "imagenet_c", "tent", "imagenet", "preset"),
        ({"kind": "timm", "architecture": "vit_base_patch16_clip_224"}, "imagenet_a", "tda", "imagenet", "preset"),
        (OF_CIFAR, "cifar_10_c", "tent", "cifar", "published"),
        (OF_CIFAR, "cifar_100_c", "tent", "cifar", "published"),
        (OF_CIFAR, "cifar_10_c", "eta", "cifar", "published"),
        (OF_CIFAR, "cifar_100_c", "eta", "cifar", "preset"),  # 0.1 is published for d_margin
        (OF_CIFAR, "cifar_10_c", "sar", "cifar", "preset"),  # its authors have no CIFAR
        (RESNET, "imagenet_c", "unient", "imagenet", "preset"),
        (VIT, "imagenet_c", "foa", "imagenet", "published"),
        (VIT, "imagenet_r", "foa", "imagenet", "preset"),  # 0.2 is published for fitness_lambda
        (CLIP, "imagenet_a", "tda", "imagenet", "published"),
        (CLIP, "imagenet_c", "tda", "imagenet", "preset"),
        (CLIP, "dtd", "tda", "imagenet", "preset"),
        (CLIP, "dtd", "stata", "imagenet", "published"),
        (CLIP, "cifar_100_c", "batclip", "cifar", "preset"),
        (CLIP, "imagenet_sketch", "boostadapter", "imagenet", "preset"),
        (RESNET, "imagenet_c_bar", "norm", "cifar", "published"),  # it has no hyperparameters
    ],
)
def test_a_preset_is_published_for_its_own_data_sets_and_networks(
    model: dict, dataset: str, method: str, preset: str, expected: str
):
    """Elsewhere it is a preset, whose values nobody published there."""
    assert expected == origin(model, dataset, method, preset)


VALUES = {
    "tent": ("imagenet_c", RESNET, {"preset": "cifar", "lr": 2.5e-4, "optimizer": "sgd"}, "published"),
    "tent, slower": ("imagenet_c", RESNET, {"lr": 1e-4}, "set by hand"),
    "eta": ("cifar_100_c", OF_CIFAR, {"preset": "cifar", "d_margin": 0.1}, "published"),
    "eta, of CIFAR-100": ("cifar_10_c", OF_CIFAR, {"preset": "cifar", "d_margin": 0.1}, "set by hand"),
    "rotta": ("cifar_10_c", OF_CIFAR, {"preset": "cifar", "augment_per": "batch"}, "published"),
    "boostadapter, in part": ("food101", CLIP, {"num_boosting": 3}, "set by hand"),
    "boostadapter, of food": (
        "food101", CLIP, {"num_boosting": 3, "positive_alpha": 1.0, "positive_beta": 1.0}, "published",
    ),
    "boostadapter": ("imagenet_a", CLIP, {"num_boosting": 3}, "published"),
    "ctpt": ("imagenet_r", CLIP, {"dispersion_weight": 20.0}, "published"),
}  # fmt: skip


@pytest.mark.parametrize("name", VALUES)
def test_values_in_the_file_are_published_where_they_were(name: str):
    """However they came about."""
    dataset, model, values, expected = VALUES[name]
    changes = {key: value for key, value in values.items() if key != "preset"}
    preset = str(values.get("preset", "imagenet"))

    assert expected == origin(model, dataset, name.partition(",")[0], preset, hyperparameters=changes)


def test_a_method_of_ones_own_is_called_own():
    """Whatever its preset and the network: nobody else has published it."""
    own = "tta_pipeline_tests.methods.own_method:LAST_CLASS"

    assert "own" == origin(RESNET, "imagenet_c", own)


def test_images_that_are_drawn_here_are_of_no_published_set():
    """Digits have the names of ImageNet-C's corruptions, and no paper has values for them."""
    benchmark = benchmark_of()

    assert "preset" == find_origin(benchmark, benchmark.experiments["tent"])
    assert "set by hand" == find_origin(benchmark, benchmark.experiments["tent_by_hand"])


def test_published_values_are_of_data_sets_and_presets_that_there_are():
    """A name that is misspelt would never be found."""
    for entry in METHODS.values():
        for preset, sets in entry.published.items():
            assert set(sets) <= set(shipped_sets())
            if preset in entry.presets:
                for changes in sets.values():
                    entry.configure(preset, changes)
