"""What a benchmark file decides of a prediction: method, settings, image size, and the cells of the stream up to it.

A fingerprint has these parts as they were when the cell was evaluated. Comparing them with the present file needs no
model, no data and no torch.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator

from pydantic_core import from_json

from tta_pipeline.benchmarks.experiments import Experiment
from tta_pipeline.util.files import hash_file
from tta_pipeline.util.json_values import JsonObject
from tta_pipeline.util.partitions import Cell

PARTS = ("method", "settings", "image_size")
"""Parts of a fingerprint that the file alone decides, beside the cells of its data."""
_UNDECIDING = (
    "group", "model", "seed", "seeds", "severities", "shards", "method", "preset", "hyperparameters", "tuned",
)  # fmt: skip
"""Settings that have their own part, name something that has one, or only list other streams."""


def parts_of_file(experiment: Experiment, *, seed: int, image_size: int) -> JsonObject:
    """Return the parts `PARTS` of a fingerprint.

    Args:
        experiment: The experiment, with chosen hyperparameters if it uses any.
        seed: The seed of the stream.
        image_size: Height and width in pixels.

    Raises:
        OSError: the list of a subset cannot be read.
    """
    settings = experiment.model_dump(mode="json", exclude=set(_UNDECIDING))
    if experiment.loader == "indexed":
        del settings["loader"]  # as before there were others: results keep their fingerprints
    if experiment.protocol.recurring == 1:
        del settings["protocol"]["recurring"]
    if experiment.protocol.adaptation_budget_s is None:
        del settings["protocol"]["adaptation_budget_s"]
    if not experiment.deterministic:
        del settings["deterministic"]
    if experiment.subset and experiment.subset.listed:
        settings["subset"] = {"listed_sha256": hash_file(experiment.subset.listed.expanduser())}
    return {
        "method": {
            "name": experiment.method,
            "preset": experiment.preset,
            "hyperparameters": experiment.configured().model_dump(mode="json"),
        },
        "settings": {**settings, "seed": seed, "order_is_seeded": experiment.seeds is not None},
        "image_size": image_size,
    }


def decided_sha256s(parts: JsonObject, segments: Iterable[Iterable[Cell]]) -> Iterator[str]:
    """Yield for each segment of a stream the hash of what the file decides of it: *parts*, and the cells so far."""
    so_far = _begin(parts)
    for cells in segments:
        for cell in cells:
            so_far = _followed(so_far, cell.key)
        yield so_far


def decided_sha256_of(fingerprint_parts: str | None) -> str | None:
    """Return the hash of what the file decided when a fingerprint with these parts, as JSON, was taken.

    None: the evaluation was of no benchmark file, or of an earlier version that says less.
    """
    if fingerprint_parts is None:
        return None
    try:
        parts = from_json(fingerprint_parts)
        so_far = _begin({name: parts[name] for name in PARTS})
        for key, _ in parts["data"]:
            so_far = _followed(so_far, str(key))
    except (KeyError, TypeError, ValueError):
        return None
    return so_far


def _begin(parts: JsonObject) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _followed(so_far: str, key: str) -> str:
    """Return the hash of a stream with one more cell: a chain, so that a long stream costs no more than its cells."""
    return hashlib.sha256(f"{so_far} {key}".encode()).hexdigest()
