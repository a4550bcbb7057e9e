"""A setting that is new in the models of a benchmark file outdates no result while it is at its default."""

from collections.abc import Iterator
from typing import Any, get_args

import pytest
from pydantic import BaseModel, create_model

from tta_pipeline.benchmarks.experiment_specs import Experiment
from tta_pipeline.benchmarks.file_fingerprint import DEFAULTS_VERSION, decided_parts, default_settings, with_defaults
from tta_pipeline.util.json_values import JsonObject

CONTENT: dict[str, Any] = {"model": "cnn", "method": "tent", "subset": {"first": 5}}
UNKNOWN = {"benchmark": "letters_c", "share": 0.2}
NESTED = {"unknown": UNKNOWN, "adapt": {"every": 2}}
OPEN: dict[str, Any] = {**CONTENT, "protocol": NESTED}
"""An experiment in which each model that an experiment can have is there."""
DEFAULTS = {
    "protocol": {
        "shift": "reset_each_shift", "order": "stored", "classes_per_batch": None, "delta": None,
        "corruption_order": "canonical", "clean": "never", "recurring": 1, "visits": 3, "unknown": None,
        "sliding_window": 1, "stream_speed": None,
        "adaptation_budget_s": None, "adapt": None,
        "predict_after_update": False,
    },
    "subset": None, "batch_size": 64, "precision": "fp32", "deterministic": False,
    "compile": "off",
}  # fmt: skip
"""Defaults of version 1."""


def models_in(kind: type[BaseModel]) -> Iterator[type[BaseModel]]:
    """Yield *kind* and the models of its fields, each once."""
    yield kind
    for field in kind.model_fields.values():
        for part in (field.annotation, *get_args(field.annotation)):
            if isinstance(part, type) and issubclass(part, BaseModel):
                yield from models_in(part)


def with_new_setting(kind: type[BaseModel], extended: type[BaseModel]) -> type[BaseModel]:
    """Return *kind*, in which *extended*, itself or the model of a field, has one more setting."""
    fields: dict[str, Any] = {}
    if kind is extended:
        return create_model(kind.__name__, __base__=kind, brand_new=(int, 7))
    for name, field in kind.model_fields.items():
        parts = [part for part in (field.annotation, *get_args(field.annotation)) if isinstance(part, type)]
        found = [part for part in parts if issubclass(part, BaseModel) and extended in models_in(part)]
        if found:
            model = with_new_setting(found[0], extended)
            default = None if field.default is None else model()
            fields[name] = (model if default else model | None, default)
    return create_model(kind.__name__, __base__=kind, **fields)


def parts_of(kind: type[BaseModel], content: dict[str, Any]) -> JsonObject:
    """Return the parts that *content*, read as a *kind*, decides."""
    return decided_parts(kind.model_validate(content), seed=0, image_size=32)  # type: ignore[arg-type]


def with_value(content: dict[str, Any], extended: type[BaseModel]) -> dict[str, Any]:
    """Return *content* with another value than the default of the new setting of *extended*."""
    if extended is Experiment:
        return {**content, "brand_new": 8}
    name = extended.__name__.lower()
    if name in NESTED:
        protocol = content["protocol"]
        return {**content, "protocol": {**protocol, name: {**protocol[name], "brand_new": 8}}}
    return {**content, name: {**content.get(name, {}), "brand_new": 8}}


@pytest.mark.parametrize("extended", list(models_in(Experiment)), ids=lambda kind: kind.__name__)
@pytest.mark.parametrize(
    "content", [OPEN, {**OPEN, "protocol": {"shift": "continual", **NESTED}}], ids=["usual", "named"]
)
def test_a_new_setting_outdates_nothing_at_its_default(extended: type[BaseModel], content: dict[str, Any]):
    """Wherever it stands: in the experiment, its protocol or its subset. Any other value is another experiment."""
    later = with_new_setting(Experiment, extended)

    assert parts_of(Experiment, content) == parts_of(later, content)
    assert parts_of(Experiment, content) != parts_of(later, with_value(content, extended))


def test_every_setting_at_its_default_is_left_out_and_any_other_value_is_not():
    """What is written out as the default is the same experiment as what is not written at all."""
    spelt = {name: value for name, value in DEFAULTS.items() if name != "subset"}

    assert parts_of(Experiment, {**CONTENT, **spelt}) == parts_of(Experiment, CONTENT)
    for name, value in {"batch_size": 65, "precision": "bf16", "deterministic": True, "protocol": "mixed"}.items():
        assert name in parts_of(Experiment, {**CONTENT, name: value})["settings"]


def test_a_changed_default_raises_the_version_of_defaults():
    """Else results of the old default would count as finished. A new setting is added to the list."""
    assert ("1", DEFAULTS) == (DEFAULTS_VERSION, default_settings()), "raise DEFAULTS_VERSION if a default changed"


def test_a_person_is_told_the_defaults():
    """Of every setting, wherever it stands; what is not of a benchmark file stays as it is."""
    parts = parts_of(Experiment, {**CONTENT, "subset": None, "protocol": "mixed"})

    told = with_defaults(parts)["settings"]

    assert isinstance(told, dict)
    assert {**DEFAULTS, "protocol": {**DEFAULTS["protocol"], "shift": "mixed"}}.items() <= told.items()
    assert {"method": "tent"} == with_defaults({"method": "tent"})
