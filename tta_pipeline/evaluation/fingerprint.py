"""Fingerprint of all that determines predictions or features, in readable parts; if it is equal, they are reused.

Library versions are not part of it: records contain them and `tta-pipeline why` shows them, but they outdate nothing.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, Self

from tta_pipeline.benchmarks.experiment_specs import Experiment
from tta_pipeline.benchmarks.file_fingerprint import next_sha256
from tta_pipeline.methods.catalogue import entry_path
from tta_pipeline.shards.set_facts import Manifest
from tta_pipeline.util.json_values import Json, JsonObject
from tta_pipeline.util.source_code import own_files, source_sha256

EVALUATION_VERSION = "4"
"""Version of what no other part covers: streams, feeding, the wrapping of models, the format of saved states."""
NETWORK_CODE = "tta_pipeline.models.normalized:Normalized"
"""Class that wraps every network."""


@dataclass(frozen=True, kw_only=True)
class Fingerprint:
    """Parts of a fingerprint by name; each is plain JSON."""

    parts: JsonObject

    @property
    def text(self) -> str:
        """Parts as canonical JSON, made on each access to save memory: a long stream has many fingerprints."""
        return json.dumps(self.parts, sort_keys=True, separators=(",", ":"), allow_nan=False)

    @cached_property
    def sha256(self) -> str:
        """sha256 that identifies everything that determines the predictions."""
        return hashlib.sha256(self.text.encode()).hexdigest()


@dataclass(frozen=True, kw_only=True)
class StreamSoFar:
    """The cells of a stream before a segment. Each hash is the end of a chain, see `next_sha256`."""

    num_cells: int = 0
    cells_sha256: str = ""
    """Hash of the keys of the cells, which the benchmark file defines."""
    data_sha256: str = ""
    """Hash of the keys and manifests of the cells."""

    def followed_by(self, manifests: Iterable[Manifest]) -> Self:
        """Return the cells before the next segment, if this segment's cells have *manifests*."""
        num_cells, cells_sha256, data_sha256 = self.num_cells, self.cells_sha256, self.data_sha256
        for manifest in manifests:
            num_cells += 1
            cells_sha256 = next_sha256(cells_sha256, manifest.cell.key)
            data_sha256 = next_sha256(data_sha256, f"{manifest.cell.key} {manifest.sha256}")
        return type(self)(num_cells=num_cells, cells_sha256=cells_sha256, data_sha256=data_sha256)


def fingerprint(
    *,
    code: str | None,
    model: JsonObject,
    device: str,
    arithmetic: JsonObject,
    image_size: int,
    manifests: Iterable[Manifest],
    before: StreamSoFar | None = None,
    version: str = EVALUATION_VERSION,
    **own: Json,
) -> Fingerprint:
    """Return the fingerprint of numbers that a model computes from shards: predictions or features.

    Args:
        code: Hash of the code that computes; None if it has no file.
        model: Everything that determines the logits of the model, such as `LoadedModel.identity`.
        device: Type of the device.
        arithmetic: Settings of float arithmetic; see `arithmetic_flags`.
        image_size: Height and width in pixels.
        manifests: Manifests of the cells from which the numbers are computed, in order.
        before: Cells that an adapting method has processed before.
        version: Version of everything that no part covers.
        own: Further parts by name.
    """
    return Fingerprint(
        parts={
            **own,
            "version": version,
            "code": code,
            "model": model,
            "arithmetic": {**arithmetic, "device": device},
            "image_size": image_size,
            "data": [[manifest.cell.key, manifest.sha256] for manifest in manifests],
            **({"before": asdict(before)} if before and before.num_cells else {}),
        }
    )


def method_code_sha256(experiment: Experiment) -> str:
    """Return the hash of the source code that the method of *experiment* runs.

    Raises:
        ValueError: a file of the source cannot be parsed.
    """
    return source_sha256(*_method_code(experiment), NETWORK_CODE)


def own_method_files(experiment: Experiment) -> Mapping[str, str]:
    """Return the sha256 of each file outside this project that the method of *experiment* runs, by its absolute path.

    Raises:
        ValueError: a file of the source cannot be parsed.
    """
    return own_files(*_method_code(experiment))


def _method_code(experiment: Experiment) -> tuple[str, ...]:
    own = entry_path(experiment.method)  # of a user's method, or of another package's: hashed with its defaults
    chosen = experiment.configured_hyperparameters().chosen_code().values()
    return (experiment.entry.implementation, *([own] if own else []), *chosen)


def diff_parts(stored: JsonObject, present: JsonObject) -> dict[str, tuple[Any, Any]]:
    """Return the differing parts of two fingerprints by dotted name, each with its stored and current value."""
    found: dict[str, tuple[Any, Any]] = {}
    for name in sorted(stored.keys() | present.keys()):
        before, now = stored.get(name), present.get(name)
        if isinstance(before, Mapping) and isinstance(now, Mapping):
            found |= {f"{name}.{inner}": values for inner, values in diff_parts(before, now).items()}
        elif before != now:
            found[name] = (before, now)
    return found
