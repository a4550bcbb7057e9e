"""Facts of an evaluation by their own names, without the parts that have them: short to change and to compare."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, cast

from tta_pipeline.results.evaluation_parts import CalibrationBins
from tta_pipeline.results.evaluation_record import Evaluation
from tta_pipeline.results.record_fields import InlinePart, declarations


def _paths(kind: Any, parts: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for name, plain, mark, _ in declarations(kind):
        if isinstance(mark, InlinePart) and plain is not CalibrationBins:
            yield from _paths(plain, (*parts, name))
        else:
            yield (*parts, name)


PATHS: Mapping[str, tuple[str, ...]] = {path[-1]: path for path in _paths(Evaluation)}
"""Parts of each fact, and its name."""


def flat(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the facts of a record by name; those of a part that is None are None."""
    return {name: _value_at(facts, path) for name, path in PATHS.items()}


def _value_at(facts: Any, path: tuple[str, ...]) -> Any:
    for name in path:
        facts = facts and facts[name]
    return facts


def flat_row(row: Evaluation) -> dict[str, Any]:
    """Return the facts of *row* by name."""
    return flat(row.facts())


def changed(row: Evaluation, **facts: Any) -> Evaluation:
    """Return *row* with other *facts*, whether or not they agree."""
    found: Any = row
    for name, value in facts.items():
        found = _with_value(found, PATHS[name], value)
    return cast("Evaluation", found)


def _with_value(record: Any, path: tuple[str, ...], value: Any) -> Any:
    first, *others = path
    return replace(record, **{first: _with_value(getattr(record, first), tuple(others), value) if others else value})


def nested(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return *facts* in the parts of a record; unknown images have none where there are no unknown images."""
    found: dict[str, Any] = {}
    for name, value in facts.items():
        put(found, name, value)
    return found if facts.get("num_unknown") else {**found, "unknown": None}


def put(facts: dict[str, Any], name: str, value: Any) -> None:
    """Set the fact *name* of a record's *facts*."""
    *parts, last = PATHS.get(name, (name,))
    for part in parts:
        facts = facts.setdefault(part, {})
    facts[last] = value
