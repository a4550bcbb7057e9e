"""Fingerprint of all that determines a segment's predictions, in readable parts; if equal, the segment is finished.

Library versions are not part of it: records hold them and `tta-pipeline why` shows them, but they outdate nothing.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from tta_pipeline.benchmarks.experiment_specs import Experiment
from tta_pipeline.benchmarks.file_fingerprint import decided_parts
from tta_pipeline.models.loaded_model import LoadedModel
from tta_pipeline.shards.set_facts import Manifest
from tta_pipeline.util.json_values import JsonObject
from tta_pipeline.util.source_code import source_sha256

EVALUATION_VERSION = "4"
"""Version of what no other part covers: streams, feeding, the wrapping of models, the form of saved states."""
NETWORK_CODE = "tta_pipeline.models.normalized:Normalized"
"""Class that wraps every network."""


@dataclass(frozen=True, kw_only=True)
class Fingerprint:
    """Parts of a fingerprint by name; each is plain JSON."""

    parts: JsonObject

    @cached_property
    def text(self) -> str:
        """Parts as canonical JSON."""
        return json.dumps(self.parts, sort_keys=True, separators=(",", ":"), allow_nan=False)

    @cached_property
    def sha256(self) -> str:
        """sha256 that identifies everything that determines the predictions."""
        return hashlib.sha256(self.text.encode()).hexdigest()


def compute_fingerprint(
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
    """Return the fingerprint of everything that determines the predictions.

    Args:
        experiment: The experiment to evaluate.
        seed: The seed of the stream.
        model: Identity of the model: weights, normalisation, architecture, selected outputs.
        code_sha256: Hash of the method's code; see `method_code_sha256`.
        arithmetic: Settings of float arithmetic; see `arithmetic_flags`.
        device: Type of the device.
        image_size: Height and width in pixels.
        manifests: Manifests of all cells in the stream so far; the last is the one to predict.
        source: Manifest of the clean images that the method sees.
    """
    return Fingerprint(
        parts={
            "version": EVALUATION_VERSION,
            **decided_parts(experiment, seed=seed, image_size=image_size),
            "code": code_sha256,
            "model": model.identity,
            "arithmetic": {**arithmetic, "device": device},
            "data": [[manifest.cell.key, manifest.sha256] for manifest in manifests],
            "source": source.sha256 if source else None,
        }
    )


def method_code_sha256(experiment: Experiment) -> str:
    """Return the hash of the source code that the method of *experiment* runs.

    Raises:
        ValueError: a file of the source cannot be parsed.
    """
    own = [experiment.method] if ":" in experiment.method else []  # a user's method, hashed with its defaults
    chosen = experiment.configured_hyperparameters().chosen_code().values()
    return source_sha256(experiment.entry.implementation, *own, *chosen, NETWORK_CODE)


def diff_parts(stored: JsonObject, present: JsonObject) -> dict[str, tuple[Any, Any]]:
    """Return the differing parts of two fingerprints by dotted name, each with its stored and present value."""
    found: dict[str, tuple[Any, Any]] = {}
    for name in sorted(stored.keys() | present.keys()):
        before, now = stored.get(name), present.get(name)
        if isinstance(before, Mapping) and isinstance(now, Mapping):
            found |= {f"{name}.{inner}": values for inner, values in diff_parts(before, now).items()}
        elif before != now:
            found[name] = (before, now)
    return found
