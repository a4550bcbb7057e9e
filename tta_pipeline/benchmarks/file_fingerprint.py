"""The parts of a fingerprint that a benchmark file decides: method, settings, image size, and the cells of the stream.

A fingerprint holds these parts as they were when the cell was evaluated. They can be compared with the present file
without a model, data or torch.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping

from pydantic_core import from_json

from tta_pipeline.benchmarks.experiment_specs import Experiment
from tta_pipeline.domain.cells import Cell
from tta_pipeline.util.files import hash_file
from tta_pipeline.util.json_values import JsonObject

PARTS = ("method", "settings", "image_size")
"""Parts of a fingerprint that the benchmark file alone decides, in addition to the cells of its data."""
CHOSEN_BY = "method.chosen_by"
"""Part of the fingerprint of a result whose hyperparameters a score without labels chose: which one."""
_NOT_IN_SETTINGS = (
    "group", "model", "seed", "seeds", "severities", "method", "preset", "hyperparameters", "tuned",
)  # fmt: skip
"""Settings that are not in the part `settings`: they have another part, name something that has one, or only list
other streams."""
DEFAULTS_VERSION = "1"
"""Version of the defaults of all other settings. Raise it when a default changes: a setting at its default is not in
the fingerprint, so that a new setting outdates nothing."""
ORDER_VERSIONS: Mapping[str, str] = {"dirichlet": "2"}
"""Version of each order of the samples whose draws have changed; results in the order as it was before are not present.
1 of dirichlet permuted all images of a time slot, and drew the same for all cells of a visit."""


def decided_parts(experiment: Experiment, *, seed: int, image_size: int, criterion: str | None = None) -> JsonObject:
    """Return the parts `PARTS` of a fingerprint.

    Args:
        experiment: The experiment, with the chosen hyperparameters if it uses any.
        seed: The seed of the stream.
        image_size: Height and width of the images in pixels.
        criterion: What chose the hyperparameters of a tuning; None: labels, or there was no tuning.

    Raises:
        OSError: the list of a subset cannot be read.
    """
    settings = experiment.model_dump(mode="json", exclude=set(_NOT_IN_SETTINGS), exclude_defaults=True)
    if experiment.subset and experiment.subset.listed:
        settings["subset"] = {"listed_sha256": hash_file(experiment.subset.listed.expanduser())}
    return {
        "method": {
            "name": experiment.method,
            "preset": experiment.preset,
            "hyperparameters": experiment.configured_hyperparameters().model_dump(mode="json"),
            **({CHOSEN_BY.partition(".")[2]: criterion} if criterion else {}),
        },
        "settings": {
            **settings,
            "defaults": DEFAULTS_VERSION,
            "seed": seed,
            "order_is_seeded": experiment.seeds is not None,
            **({"order_version": version} if (version := ORDER_VERSIONS.get(experiment.stream_order)) else {}),
        },
        "image_size": image_size,
    }


def with_defaults(parts: JsonObject) -> JsonObject:
    """Return *parts* of a fingerprint, with the settings that are at their default, for a person to read."""
    settings = parts.get("settings")
    return {**parts, "settings": _complete(settings, default_settings())} if isinstance(settings, Mapping) else parts


def default_settings() -> JsonObject:
    """Return the defaults of all settings that can be in the part `settings`."""
    usual = Experiment.model_construct(model="", method="")
    return usual.model_dump(mode="json", exclude=set(_NOT_IN_SETTINGS))


def _complete(found: JsonObject, defaults: JsonObject) -> JsonObject:
    return {
        name: _complete(value, default)
        if isinstance(value, Mapping) and isinstance(default := defaults.get(name), Mapping)
        else value
        for name, value in {**defaults, **found}.items()
    }


def decided_sha256s(parts: JsonObject, segments: Iterable[Iterable[Cell]]) -> Iterator[str]:
    """Yield, for each segment of a stream, the hash of *parts* and of all cells up to the end of the segment."""
    decided, cells_sha256 = _hash_parts(parts), ""
    for cells in segments:
        for cell in cells:
            cells_sha256 = next_sha256(cells_sha256, cell.key)
        yield next_sha256(decided, cells_sha256)


def decided_sha256_of(fingerprint_parts: str) -> str | None:
    """Return the hash of the parts that the benchmark file decided when a fingerprint was taken.

    *fingerprint_parts* are the parts of the fingerprint as JSON. None is returned for an evaluation without a benchmark
    file.
    """
    parts = from_json(fingerprint_parts)
    if not parts.keys() >= set(PARTS):
        return None
    cells_sha256 = parts.get("before", {}).get("cells_sha256", "")
    for key, _ in parts["data"]:
        cells_sha256 = next_sha256(cells_sha256, key)
    return next_sha256(_hash_parts({name: parts[name] for name in PARTS}), cells_sha256)


def next_sha256(so_far: str, item: str) -> str:
    """Return the hash of a sequence with the hash *so_far* and one more *item*.

    Such hashes form a chain, so each further item of a long sequence costs one hash.
    """
    return hashlib.sha256(f"{so_far} {item}".encode()).hexdigest()


def _hash_parts(parts: JsonObject) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
