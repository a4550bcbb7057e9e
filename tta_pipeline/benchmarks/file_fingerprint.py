"""The parts of a fingerprint that a benchmark file alone decides: method, settings and image size."""

import hashlib
from collections.abc import Mapping

from tta_pipeline.benchmarks.experiment_specs import Experiment
from tta_pipeline.benchmarks.protocol import ORDERS
from tta_pipeline.util.files import hash_file
from tta_pipeline.util.json_values import JsonObject

CHOSEN_BY = "method.chosen_by"
"""Part of the fingerprint that names the score without labels that chose a result's hyperparameters."""
_NOT_IN_SETTINGS = (
    "group", "model", "seed", "seeds", "severities", "method", "preset", "hyperparameters", "tuned",
)  # fmt: skip
"""Settings that are not in the part `settings`: they have another part, name something that has one, or only list
other streams."""
DEFAULTS_VERSION = "1"
"""Version of the defaults of all other settings. Raise it when a default changes: a setting at its default is not in
the fingerprint, so that a new setting outdates nothing."""


def decided_parts(experiment: Experiment, *, seed: int, image_size: int, criterion: str | None = None) -> JsonObject:
    """Return the parts method, settings and image_size of a fingerprint.

    Args:
        experiment: The experiment, with the chosen hyperparameters if it uses any.
        seed: The seed of the stream.
        image_size: Height and width of the images in pixels.
        criterion: Criterion of the tuning that chose the hyperparameters; None: labels, or there was no tuning.

    Raises:
        OSError: the list of a subset cannot be read.
    """
    settings = experiment.model_dump(mode="json", exclude=set(_NOT_IN_SETTINGS), exclude_defaults=True)
    if experiment.subset and experiment.subset.file:
        settings["subset"] = {"file_sha256": hash_file(experiment.subset.file.expanduser())}
    order = ORDERS.get(experiment.stream_order)
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
            "stream_order": experiment.stream_order,
            **({"order_version": order.version} if order and order.version else {}),
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


def next_sha256(so_far: str, item: str) -> str:
    """Return the hash of a sequence with the hash *so_far* and one more *item*.

    Such hashes form a chain, so each further item of a long sequence costs one hash.
    """
    return hashlib.sha256(f"{so_far} {item}".encode()).hexdigest()
