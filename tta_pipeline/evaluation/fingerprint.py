"""What decides the predictions of a segment, by parts that a person can compare; equal means nothing to evaluate.

The version of a library is no part of it: records have it, `tta-pipeline why` names it, and it outdates nothing.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from tta_pipeline.benchmarks.experiments import Experiment
from tta_pipeline.evaluation.models import LoadedModel
from tta_pipeline.json_values import JsonObject
from tta_pipeline.shards.manifest import Manifest, file_sha256
from tta_pipeline.source_code import source_sha256

EVALUATION_VERSION = "3"
"""Of the code that no part names: streams, feeding, the wrapping of models."""
_NETWORK_CODE = "tta_pipeline.training.network:Normalized"
_UNDECIDING = ("group", "model", "seed", "seeds", "severities", "shards", "method", "preset", "hyperparameters")
"""Settings that have a part of their own, name what has one, or say which other streams there are."""


@dataclass(frozen=True, kw_only=True)
class Fingerprint:
    """The parts by name; each is plain JSON."""

    parts: JsonObject

    @cached_property
    def text(self) -> str:
        """The parts as JSON, always in the same form."""
        return json.dumps(self.parts, sort_keys=True, separators=(",", ":"), allow_nan=False)

    @cached_property
    def sha256(self) -> str:
        """The identity of what decides the predictions."""
        return hashlib.sha256(self.text.encode()).hexdigest()


def fingerprint(
    experiment: Experiment,
    *,
    seed: int,
    model: LoadedModel,
    code_sha256: str,
    arithmetic: JsonObject,
    device: str,
    image_size: int,
    manifests: Sequence[Manifest],
    source: Manifest | None,
) -> Fingerprint:
    """Return everything that decides the predictions.

    Args:
        experiment: What is evaluated.
        seed: The one of its seeds that it is about.
        model: What it is besides its weights, too: normalisation, architecture, the outputs that are taken.
        code_sha256: Of the method; see `method_code_sha256`.
        arithmetic: How floats are computed with; see `arithmetic_flags`.
        device: Its type.
        image_size: Height and width in pixels.
        manifests: Of all that the stream has had, the last being what is predicted.
        source: What the method sees of clean images.
    """
    settings = experiment.model_dump(mode="json", exclude=set(_UNDECIDING))
    if experiment.subset and experiment.subset.listed:
        settings["subset"] = {"listed_sha256": file_sha256(experiment.subset.listed.expanduser())}
    return Fingerprint(
        parts={
            "version": EVALUATION_VERSION,
            "method": {
                "name": experiment.method,
                "preset": experiment.preset,
                "hyperparameters": experiment.configured().model_dump(mode="json"),
            },
            "code": code_sha256,
            "settings": {**settings, "seed": seed, "order_is_seeded": experiment.seeds is not None},
            "model": model.identity,
            "arithmetic": {**arithmetic, "device": device},
            "image_size": image_size,
            "data": [[manifest.cell.key, manifest.sha256] for manifest in manifests],
            "source": source.sha256 if source else None,
        }
    )


def method_code_sha256(experiment: Experiment) -> str:
    """Return the hash of the source code that the method of *experiment* runs.

    Raises:
        ValueError: a file of it cannot be parsed.
    """
    own = [experiment.method] if ":" in experiment.method else []  # with its defaults, which the catalogue's state
    return source_sha256(experiment.entry.implementation, *own, _NETWORK_CODE)


def differing(stored: JsonObject, present: JsonObject) -> dict[str, tuple[Any, Any]]:
    """Return what is not the same in two fingerprints, by dotted name: what is stored, and what is present."""
    found: dict[str, tuple[Any, Any]] = {}
    for name in sorted(stored.keys() | present.keys()):
        before, now = stored.get(name), present.get(name)
        if isinstance(before, Mapping) and isinstance(now, Mapping):
            found |= {f"{name}.{inner}": values for inner, values in differing(before, now).items()}
        elif before != now:
            found[name] = (before, now)
    return found
