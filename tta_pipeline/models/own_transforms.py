"""The transform that a model's own configuration asks for, beside the one that the benchmark file gives its images.

Another filter, share of the crop or size than that of training costs accuracy without a word. Nothing is downloaded,
and no network is made: a configuration that is not on this machine yet is unknown.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import floor
from pathlib import Path
from typing import Any, get_args

import numpy as np

from tta_pipeline.benchmarks.benchmark import Benchmark
from tta_pipeline.benchmarks.model_specs import (
    AnyModel,
    CheckpointModel,
    HubModel,
    OpenClipModel,
    TimmModel,
    TorchvisionModel,
    TransformersModel,
)
from tta_pipeline.benchmarks.shard_settings import Interpolation, ShardSettings
from tta_pipeline.errors import PipelineError
from tta_pipeline.models.clip_models import find_architecture, import_open_clip
from tta_pipeline.models.libraries import import_library, import_timm
from tta_pipeline.models.torchvision_models import find_weights

_TIMM_CROP_SHARE = 0.875
"""timm's share of the crop where a configuration has none."""
_PILLOW_FILTERS = {2: "bilinear", 3: "bicubic"}
_TOLERANCE = 0.005
"""Largest difference between means or stds that count as equal."""


@dataclass(frozen=True, kw_only=True)
class OwnTransform:
    """How a library prepares an image for a model."""

    size: int
    """Height and width of the crop in pixels."""
    resize: int
    """Length of the shorter side before the crop, in pixels."""
    interpolation: str
    keeps_ratio: bool = True
    """Whether the resize keeps the ratio of the sides."""
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()


@dataclass(frozen=True, kw_only=True)
class OtherTransform:
    """A model whose own configuration asks for another transform than the benchmark file gives its images."""

    model: str
    found: str
    advice: str
    """The lines to write."""

    def __str__(self) -> str:
        return f"model {self.model}: {self.found}; {self.advice}"


def find_other_transforms(benchmark: Benchmark, models: Iterable[str]) -> Iterator[OtherTransform]:
    """Yield those of *models* that ask for another transform, each once.

    Images that the shards store as they are have no filter and no crop to compare.
    """
    for name in dict.fromkeys(models):
        spec = benchmark.models[name]
        try:
            own = own_transforms(spec)
        except PipelineError:
            continue  # the model cannot be loaded, which is said elsewhere
        if own:
            fitting = next((each for each in own if each.size == benchmark.image_size), own[0])
            yield from _compare(name, spec, fitting, benchmark)


def own_transforms(spec: AnyModel) -> tuple[OwnTransform, ...]:
    """Return the transforms for which *spec*'s weights were made, the usual one first; none if they are unknown.

    Raises:
        EvaluationError: a library is not installed, or has no such model.
    """
    if isinstance(spec, OpenClipModel):
        return _of_open_clip(spec)
    if isinstance(spec, TransformersModel):
        return _of_transformers(spec)
    if isinstance(spec, TorchvisionModel):
        return _of_torchvision(spec)
    return _of_timm(_timm_settings(spec))


def _timm_settings(spec: AnyModel) -> Mapping[str, Any]:
    """Return timm's `pretrained_cfg` of the weights of *spec*; nothing if it is not of timm, or unknown."""
    if isinstance(spec, HubModel):
        found = _cached("timm", spec.hf, spec.revision, "config.json")
        settings: Mapping[str, Any] = found.get("pretrained_cfg", found)
        return settings
    if not isinstance(spec, TimmModel | CheckpointModel):
        return {}
    if isinstance(spec, CheckpointModel) and (spec.library != "timm" or "." not in spec.architecture):
        return {}  # without the tag of timm's weights, the file has the user's own
    known = import_timm().get_pretrained_cfg(spec.architecture)
    return known.to_dict() if known else {}


def _of_timm(settings: Mapping[str, Any]) -> tuple[OwnTransform, ...]:
    """Return the transform of a `pretrained_cfg`, and that of its larger test images if it has one."""
    found = []
    for prefix in ("", "test_"):
        if (size := settings.get(f"{prefix}input_size")) is None:
            continue
        share = settings.get(f"{prefix}crop_pct") or settings.get("crop_pct") or _TIMM_CROP_SHARE
        found.append(
            OwnTransform(
                size=size[-1],
                resize=floor(size[-1] / share),
                interpolation=settings.get("interpolation") or "bicubic",
                keeps_ratio=(settings.get("crop_mode") or "center") == "center",
                mean=tuple(settings.get("mean") or ()),
                std=tuple(settings.get("std") or ()),
            )
        )
    return tuple(found)


def _of_torchvision(spec: TorchvisionModel) -> tuple[OwnTransform, ...]:
    own = find_weights(spec).transforms()
    return (OwnTransform(size=own.crop_size[0], resize=own.resize_size[0], interpolation=own.interpolation.value),)


def _of_open_clip(spec: OpenClipModel) -> tuple[OwnTransform, ...]:
    open_clip = import_open_clip()
    architecture, _ = find_architecture(open_clip, spec.architecture)
    size = open_clip.get_model_config(architecture)["vision_cfg"]["image_size"]
    settings = (open_clip.get_pretrained_cfg(architecture, spec.pretrained) if spec.pretrained else None) or {}
    side = size if isinstance(size, int) else size[0]
    keeps_ratio = settings.get("resize_mode", "shortest") == "shortest"
    filter_ = settings.get("interpolation", "bicubic")
    return (OwnTransform(size=side, resize=side, interpolation=filter_, keeps_ratio=keeps_ratio),)


def _of_transformers(spec: TransformersModel) -> tuple[OwnTransform, ...]:
    name = "preprocessor_config.json"
    if spec.folder is None:
        found = _cached("transformers", str(spec.hf), str(spec.revision), name)
    else:
        found = _read(spec.folder.expanduser() / name)
    size = found.get("size") or {}
    resize = size.get("shortest_edge") or size.get("height")
    if not resize:
        return ()
    crop = (found.get("crop_size") or {}).get("height") if found.get("do_center_crop") else None
    filter_ = _PILLOW_FILTERS.get(found.get("resample", 2), "another filter")
    keeps_ratio = "shortest_edge" in size
    return (OwnTransform(size=crop or resize, resize=resize, interpolation=filter_, keeps_ratio=keeps_ratio),)


def _cached(extra: str, repository: str, revision: str, name: str) -> Mapping[str, Any]:
    """Return the JSON file *name* of a repository on the Hub, if it is in this machine's cache; else nothing."""
    hub = import_library("huggingface_hub", extra=extra)
    found = hub.try_to_load_from_cache(repository, name, revision=revision)
    return _read(Path(found)) if isinstance(found, str) else {}


def _read(path: Path) -> Mapping[str, Any]:
    """Return the JSON object in the file at *path*; nothing if there is none."""
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _compare(name: str, spec: AnyModel, own: OwnTransform, benchmark: Benchmark) -> Iterator[OtherTransform]:
    """Yield what is other in the *own* transform of the model *name*; nothing if it is the file's."""
    asks, lines = list[str](), list[str]()
    if own.size != benchmark.image_size:
        asks.append(f"images of {own.size} pixels instead of {benchmark.image_size}")
        lines.append(f"`image_size: {own.size}`")
    asks += _other_resize(own, benchmark.shards)
    if asks and benchmark.shards is not None:
        lines.append(f"`shards: {{{_shard_fields(own)}}}`")
    if isinstance(spec, CheckpointModel):
        for field, stated, expected in (("mean", spec.mean, own.mean), ("std", spec.std, own.std)):
            if expected and np.abs(np.subtract(stated, expected)).max() > _TOLERANCE:
                asks.append(f"{field} {list(expected)} instead of {list(stated)}")
                lines.append(f"`{field}: {list(expected)}`")
    if asks:
        yield OtherTransform(
            model=name,
            found=f"its own configuration asks for {', '.join(asks)}",
            advice=f"write {' and '.join(lines)} beside the other fields, unless the difference is meant",
        )


def _other_resize(own: OwnTransform, shards: ShardSettings | None) -> Iterator[str]:
    """Yield what is other in the resize of *shards*; nothing where they store images as they are."""
    if shards is None or not (shards.resize or shards.center_crop):
        return
    if not own.keeps_ratio:
        yield f"a resize of both sides to {own.resize}, whatever their ratio, instead of the shorter side"
    if own.resize != shards.resize:
        yield f"resize {own.resize} (crop share {own.size / own.resize:.3g}) instead of {shards.resize or 'none'}"
    if own.interpolation != shards.interpolation:
        yield f"interpolation {own.interpolation} instead of {shards.interpolation}"


def _shard_fields(own: OwnTransform) -> str:
    """Return the fields of the shards that give *own*; a resize of another kind is a function of the user's."""
    if own.keeps_ratio and own.interpolation in get_args(Interpolation):
        return f"resize: {own.resize}, center_crop: {own.size}, interpolation: {own.interpolation}"
    return f"function: <module>:<your {own.interpolation} resize to {own.resize}>, center_crop: {own.size}"
