"""Compare the transform in a model's own configuration with the benchmark file's.

A filter, crop share or size other than in training costs accuracy without a warning. Nothing is downloaded and no
network is built: a configuration that is not on this machine yet is skipped.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import get_args

import numpy as np

from tta_pipeline.benchmarks.benchmark import Benchmark
from tta_pipeline.benchmarks.model_specs import ModelSection
from tta_pipeline.benchmarks.shard_settings import Interpolation, ShardSettings
from tta_pipeline.errors import PipelineError
from tta_pipeline.models.model_kind import OwnTransform, kind_of

_TOLERANCE = 0.005
"""Largest difference between means or stds that count as equal."""


@dataclass(frozen=True, kw_only=True)
class OtherTransform:
    """A model whose own configuration has another transform than the benchmark file."""

    model: str
    found: str
    advice: str
    """The lines to write."""

    def __str__(self) -> str:
        return f"model {self.model}: {self.found}; {self.advice}"


def find_other_transforms(benchmark: Benchmark, models: Iterable[str]) -> Iterator[OtherTransform]:
    """Yield each of *models* whose own configuration has another transform, once.

    Images that the shards store as they are have no filter and no crop to compare.
    """
    for name in dict.fromkeys(models):
        spec = benchmark.models[name]
        try:
            own = kind_of(spec).own_transforms()
        except PipelineError:
            continue  # the model cannot be loaded, which is reported elsewhere
        if own:
            fitting = next((each for each in own if each.size == benchmark.image_size), own[0])
            yield from _compare(name, spec, fitting, benchmark)


def _compare(name: str, spec: ModelSection, own: OwnTransform, benchmark: Benchmark) -> Iterator[OtherTransform]:
    """Yield the differences of the *own* transform of the model *name* to the file's; nothing if they are equal."""
    asks, lines = list[str](), list[str]()
    if own.size != benchmark.image_size:
        asks.append(f"images of {own.size} pixels instead of {benchmark.image_size}")
        lines.append(f"`image_size: {own.size}`")
    asks += _other_resize(own, benchmark.shards)
    if asks and benchmark.shards is not None:
        lines.append(f"`shards: {{{_shard_fields(own)}}}`")
    for field, expected in (("mean", own.mean), ("std", own.std)):
        stated = getattr(spec, field, None)
        if stated and expected and np.abs(np.subtract(stated, expected)).max() > _TOLERANCE:
            asks.append(f"{field} {list(expected)} instead of {list(stated)}")
            lines.append(f"`{field}: {list(expected)}`")
    if asks:
        yield OtherTransform(
            model=name,
            found=f"its own configuration has {', '.join(asks)}",
            advice=f"write {' and '.join(lines)} next to the other fields, unless the difference is intended",
        )


def _other_resize(own: OwnTransform, shards: ShardSettings | None) -> Iterator[str]:
    """Yield the differences to the resize of *shards*; nothing if they store images unchanged."""
    if shards is None or not (shards.resize or shards.center_crop):
        return
    if not own.keeps_ratio:
        yield f"a resize of both sides to {own.resize}, whatever their ratio, instead of the shorter side"
    if own.resize != shards.resize:
        yield f"resize {own.resize} (crop share {own.size / own.resize:.3g}) instead of {shards.resize or 'none'}"
    if own.interpolation != shards.interpolation:
        yield f"interpolation {own.interpolation} instead of {shards.interpolation}"


def _shard_fields(own: OwnTransform) -> str:
    """Return the fields of the shards that produce *own*; any other resize needs the user's function."""
    if own.keeps_ratio and own.interpolation in get_args(Interpolation):
        return f"resize: {own.resize}, center_crop: {own.size}, interpolation: {own.interpolation}"
    return f"function: <module>:<your {own.interpolation} resize to {own.resize}>, center_crop: {own.size}"
