"""A model whose own configuration asks for another transform than its images have is named, with what to write."""

import io
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from PIL import Image
from torchvision.transforms import v2

from tta_pipeline.benchmarks.benchmark import Benchmark
from tta_pipeline.benchmarks.model_specs import HubModel, TransformersModel
from tta_pipeline.benchmarks.shard_settings import ShardSettings
from tta_pipeline.data.image_bytes import read_array
from tta_pipeline.models.model_kind import kind_of
from tta_pipeline.models.own_transforms import find_other_transforms
from tta_pipeline.shards.encoding import encoder
from tta_pipeline_tests.conftest import jpeg

timm = pytest.importorskip("timm")
open_clip = pytest.importorskip("open_clip")

VIT = {"kind": "timm", "architecture": "vit_base_patch16_224.augreg_in21k_ft_in1k"}
RESNET_OF_TIMM = {"kind": "timm", "architecture": "resnet50.a1_in1k"}
SQUASHED = {"kind": "timm", "architecture": "convnext_base.fb_in22k_ft_in1k_384"}
RESNET = {"kind": "torchvision", "architecture": "resnet50", "weights": "IMAGENET1K_V1"}
CLIP = {"kind": "open_clip", "architecture": "ViT-B-32", "pretrained": "openai"}
OWN_CLIP = {"kind": "open_clip", "architecture": "ViT-B-32", "weights": "/mine.pt", "sha256": "0" * 64}
SIGLIP = {"kind": "open_clip", "architecture": "ViT-B-16-SigLIP", "pretrained": "webli"}
USUAL = {"resize": 256, "center_crop": 224}
COMMIT = "0123456789abcdef0123456789abcdef01234567"


def benchmark_of(model: dict[str, Any], shards: dict[str, Any], *, image_size: int = 224) -> Benchmark:
    """Return a benchmark of folders, whose images become *shards*, with *model*."""
    content = {
        "name": "mine", "title": "Mine", "images": {"kind": "folder", "root": "/images"}, "image_size": image_size,
        "shards": {"num_shards": 1, **shards}, "models": {"own": model},
        "experiments": {"own": {"model": "own", "method": "source"}},
    }  # fmt: skip
    return Benchmark.model_validate(content)


def found(model: dict[str, Any], shards: dict[str, Any], *, image_size: int = 224) -> str:
    """Return what is said of *model*; empty if nothing is."""
    return " ".join(map(str, find_other_transforms(benchmark_of(model, shards, image_size=image_size), ["own", "own"])))


@pytest.mark.parametrize(
    ("model", "shards", "said"),
    [
        (VIT, USUAL, ["resize 248 (crop share 0.903)", "interpolation bicubic instead of bilinear"]),
        (VIT, {"resize": 248, "center_crop": 224}, ["interpolation bicubic instead of bilinear"]),
        (VIT, {**USUAL, "interpolation": "bicubic"}, ["resize 248", "instead of 256"]),
        (VIT, {"center_crop": 224}, ["resize 248", "instead of none"]),
        (RESNET_OF_TIMM, USUAL, ["resize 235", "bicubic"]),
        (RESNET, {**USUAL, "interpolation": "bicubic"}, ["interpolation bilinear instead of bicubic"]),
        (RESNET, {"resize": 232, "center_crop": 224}, ["resize 256", "instead of 232"]),
        (CLIP, USUAL, ["resize 224", "bicubic"]),
        (OWN_CLIP, USUAL, ["resize 224", "bicubic"]),
        (SIGLIP, {"resize": 224, "center_crop": 224, "interpolation": "bicubic"}, ["both sides", "function: <module>"]),
        (SQUASHED, USUAL, ["images of 384 pixels instead of 224", "`image_size: 384`"]),
        (SQUASHED, {}, ["images of 384 pixels instead of 224"]),
    ],
)
def test_what_a_configuration_asks_for_is_said_with_the_line(model: dict, shards: dict, said: list[str]):
    """Filter, share of the crop, size, and a resize that shards do not have; once for each model."""
    text = found(model, shards)

    assert 1 == text.count("model own")
    assert all(part in text for part in said), text


@pytest.mark.parametrize("model", [VIT, RESNET_OF_TIMM, RESNET, CLIP])
def test_the_line_gives_what_the_configuration_asks_for(model: dict):
    """Written into the file, nothing is left to say."""
    (line,) = re.findall(r"`(shards: \{.*?\})`", found(model, {"resize": 300, "center_crop": 224}))

    assert not found(model, yaml.safe_load(line)["shards"])


def test_images_that_are_stored_as_they_are_have_no_filter():
    """Those of ImageNet-C have been resized by its authors; only their size can be another one."""
    assert not any(found(model, {}) for model in (VIT, RESNET_OF_TIMM, RESNET, CLIP, SIGLIP))
    assert not found(RESNET_OF_TIMM, {"resize": 288, "center_crop": 288, "interpolation": "bicubic"}, image_size=288)
    assert re.search(r"\b224\b.*\b32\b", found(VIT, {}, image_size=32))


@pytest.mark.parametrize(("architecture", "is_said"), [(VIT["architecture"], True), ("vit_base_patch16_224", False)])
def test_another_mean_than_that_of_the_tag_is_said(tmp_path: Path, architecture: str, *, is_said: bool):
    """A checkpoint that names the tag of timm's weights has their mean and std; without a tag it is the user's own."""
    facts = {"path": str(tmp_path / "vit.pth"), "sha256": "0" * 64, "mean": [0.485, 0.456, 0.406], "std": [0.5] * 3}
    text = found({"kind": "checkpoint", "library": "timm", "architecture": architecture, **facts}, {})

    assert is_said == ("`mean: [0.5, 0.5, 0.5]`" in text)
    assert "std" not in text


@pytest.mark.parametrize("size", [(300, 400), (400, 300), (301, 257)])
def test_shards_have_the_pixels_of_the_libraries(size: tuple[int, int]):
    """Timm's and open_clip's own transforms of the same file give them, with the line as it is said."""
    image = Image.open(io.BytesIO(jpeg(1, size=64))).resize(size)
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    for model, theirs in (
        (VIT, timm.data.create_transform(**timm.data.resolve_data_config(
            pretrained_cfg=timm.get_pretrained_cfg(VIT["architecture"]).to_dict()))),
        (CLIP, open_clip.image_transform(224, is_train=False, interpolation="bicubic", resize_mode="shortest")),
    ):  # fmt: skip
        (line,) = re.findall(r"`(shards: \{.*?\})`", found(model, USUAL))
        settings = ShardSettings(num_shards=1, format="tensor", **yaml.safe_load(line)["shards"])
        pixels = [each for each in theirs.transforms if isinstance(each, v2.Resize | v2.CenterCrop) or "Resize" in
                  type(each).__name__ or "CenterCrop" in type(each).__name__]  # fmt: skip
        expected = image
        for each in pixels:
            expected = each(expected)

        assert 2 == len(pixels)
        np.testing.assert_array_equal(read_array(encoder(settings)(buffer.getvalue())), np.asarray(expected))


def test_a_model_of_the_hub_is_known_as_soon_as_its_configuration_is_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Nothing is downloaded for it."""
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    spec = HubModel(kind="hf", hf="someone/tiny", revision=COMMIT)
    assert () == kind_of(spec).own_transforms()

    folder = tmp_path / "models--someone--tiny" / "snapshots" / COMMIT
    folder.mkdir(parents=True)
    settings = {"input_size": [3, 96, 96], "crop_pct": 0.5, "interpolation": "bicubic", "mean": [0.5] * 3}
    (folder / "config.json").write_text(json.dumps({"architecture": "resnet18", "pretrained_cfg": settings}))
    (own,) = kind_of(spec).own_transforms()
    assert (96, 192, "bicubic") == (own.size, own.resize, own.interpolation)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (
            {"size": {"shortest_edge": 224}, "do_center_crop": True, "crop_size": {"height": 224, "width": 224},
             "resample": 3},
            (224, 224, "bicubic", True),
        ),
        ({"size": 256, "do_center_crop": True, "crop_size": 224}, (224, 256, "bicubic", True)),
        (
            {"size": {"height": 256, "width": 256}, "do_center_crop": False, "crop_size": {"height": 224, "width": 224},
             "resample": 2},
            (256, 256, "bilinear", False),
        ),
        ({}, None),
    ],
)  # fmt: skip
def test_a_folder_of_transformers_says_its_transform(tmp_path: Path, settings: dict, expected: tuple | None):
    """SigLIP resizes both sides, CLIP the shorter one; older files of CLIP have numbers as sizes."""
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(settings))
    own = kind_of(TransformersModel(kind="transformers", folder=tmp_path, sha256="0" * 64)).own_transforms()

    assert expected == next(((each.size, each.resize, each.interpolation, each.keeps_ratio) for each in own), None)
