"""A matrix of experiments in a benchmark file: each model with each method under each protocol."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ConfigDict, TypeAdapter, ValidationError, model_validator

from tta_pipeline.benchmarks.experiment_specs import Experiment, expand_protocols, split_method
from tta_pipeline.benchmarks.protocol import Protocol
from tta_pipeline.methods.entry import PIECES
from tta_pipeline.util.config_model import ConfigModel
from tta_pipeline.util.nearest_names import name_choices
from tta_pipeline.util.short_lists import short_repr

_COMBINATION_FIELDS = frozenset({"model", "method", "hyperparameters", "protocol"})
"""Fields of an experiment that a matrix does not share."""


@dataclass(frozen=True, kw_only=True)
class Combination:
    """A model, a method and a protocol of a matrix."""

    model: str
    method: str
    """Name of the method in the names of experiments: its own name, or the name of the variant."""
    protocol: Protocol
    names_model: bool
    """Whether the name of the experiment includes its model."""
    content: Mapping[str, object]
    """The experiment's section, as in a benchmark file."""

    @property
    def name(self) -> str:
        """Name of the experiment: `<model>_<method>_<protocol>`, without a single model and the default protocol."""
        model = (self.model,) if self.names_model else ()
        protocol = () if self.protocol.name == Protocol().name else (self.protocol.name,)
        return "_".join((*model, self.method, *protocol))


class Exclusion(ConfigModel):
    """Experiments that a matrix leaves out: all with the named model, method and protocol."""

    model: str | None = None
    """Name of the model."""
    method: str | None = None
    """Name of the method as in the names of the experiments."""
    protocol: str | None = None
    """Name of the protocol, such as `continual`."""

    def matches(self, each: Combination) -> bool:
        """Return whether the experiment of *each* is left out."""
        named = (self.model, self.method, self.protocol)
        of_it = (each.model, each.method, each.protocol.name)
        return all(wanted in (None, found) for wanted, found in zip(named, of_it, strict=True))


class Matrix(ConfigModel):
    """One experiment per combination of model, method and protocol, named `<model>_<method>_<protocol>`.

    The name has no model if there is only one, and no protocol for `reset_each_shift`. Any other field of an
    experiment, such as `preset`, `batch_size`, `group` or `subset`, applies to all experiments of the matrix.
    """

    model_config = ConfigDict(extra="allow")

    models: tuple[str, ...]
    """Names of models in this file."""
    methods: tuple[Any, ...]
    """Names of methods. `{eata: {lr: 0.001}}` also sets hyperparameters. `{eata: {lr: 0.001}, name: eata_fast}`
    also sets the name; a second variant of a method needs one. `{base: tent, loss: come, reset: asr}` combines
    methods, and its default name is tent_come_asr."""
    protocols: tuple[Protocol, ...] = ()
    """Protocols. Default: only `reset_each_shift`."""
    exclude: tuple[Exclusion, ...] = ()
    """Combinations to leave out, such as `{model: vit, method: norm}`."""

    @model_validator(mode="before")
    @classmethod
    def _refuse_unknown_fields(cls, value: Any) -> Any:
        known = [*cls.model_fields, *(name for name in Experiment.model_fields if name not in _COMBINATION_FIELDS)]
        unknown = sorted(set(value) - set(known)) if isinstance(value, dict) else []
        if unknown:
            choices = name_choices(unknown, known, listed_in=cls.listed_in)
            raise ValueError(f"unknown field {', '.join(map(str, unknown))}; expected any of {choices}")
        return value

    @model_validator(mode="after")
    def _excludes_some(self) -> "Matrix":
        everything = tuple(self._all_combinations())
        if not everything:
            raise ValueError("models or methods is empty; expected at least one of each")
        for position, each in enumerate(self.exclude):
            if not any(map(each.matches, everything)):
                models, methods, protocols = (
                    ", ".join(dict.fromkeys(names))
                    for names in zip(*((one.model, one.method, one.protocol.name) for one in everything), strict=True)
                )
                raise ValueError(
                    f"exclude.{position} is {each.model_dump(exclude_none=True)}, which matches no combination of the "
                    f"matrix; expected a model of {models}, a method of {methods} or a protocol of {protocols}"
                )
        if not self.combinations:
            raise ValueError(
                "exclude removes every combination of the matrix; expected at least one experiment to be left: "
                "remove an entry of exclude"
            )
        return self

    @property
    def combinations(self) -> tuple[Combination, ...]:
        """The combinations that become experiments, in the order of the models, the methods and the protocols."""
        return tuple(each for each in self._all_combinations() if not any(out.matches(each) for out in self.exclude))

    def _all_combinations(self) -> Iterator[Combination]:
        shared = self.model_extra or {}
        for model in self.models:
            for name, method, hyperparameters in map(_parse_variant, self.methods):
                for protocol in self.protocols or (Protocol(),):
                    own = {"model": model, "method": method, "hyperparameters": hyperparameters, "protocol": protocol}
                    yield Combination(
                        model=model,
                        method=name,
                        protocol=protocol,
                        names_model=len(self.models) > 1,
                        content={**shared, **own},
                    )


def as_list(value: Any) -> Any:
    """Return a single matrix of a benchmark file as a list of one."""
    return [value] if isinstance(value, dict) else value


def expand_matrices(content: Mapping[str, object]) -> tuple[Mapping[str, object], Mapping[str, str]]:
    """Return *content* of a benchmark file with the experiments of its matrices, and the origin of each of these.

    Origins are the names of fields: `matrix`, or `matrix.0` and so on if there are several matrices.

    Raises:
        ValidationError: a matrix is malformed.
        ValueError: two experiments have the same name.
    """
    given = content.get("experiments", {})
    if "matrix" not in content or not isinstance(given, dict):
        return content, {}
    matrices = _MATRICES.validate_python(as_list(content["matrix"]))
    origins = {name: "experiments" for each in given.items() for name in _experiment_names(*each)}
    made: dict[str, Mapping[str, object]] = {}
    for position, matrix in enumerate(matrices):
        origin = f"matrix.{position}" if len(matrices) > 1 else "matrix"
        for each in matrix.combinations:
            if each.name in origins:
                raise ValueError(
                    f"the experiment {each.name} of {origin} already exists in {origins[each.name]}; expected "
                    "distinct names: exclude it, or name this variant of the method, as in "
                    f"`{{{each.method}: {{}}, name: {each.method}_2}}`"
                )
            origins[each.name] = origin
            made[each.name] = each.content
    return {**content, "matrix": matrices, "experiments": {**given, **made}}, {name: origins[name] for name in made}


_MATRICES = TypeAdapter(tuple[Matrix, ...])


def _parse_variant(method: Any) -> tuple[str, str, Mapping[str, object]]:
    """Return the name, the method and the hyperparameters of a variant in `methods`."""
    if isinstance(method, str):
        method = {method: {}}
    if isinstance(method, dict) and "base" in method:
        base, pieces = split_method({key: value for key, value in method.items() if key != "name"})
        method = {base: pieces, "name": method.get("name", _join_pieces(base, pieces))}
    found = {key: value for key, value in method.items() if key != "name"} if isinstance(method, dict) else {}
    if len(found) != 1:
        raise ValueError(
            f"methods contains {short_repr(method)}, which is not a method; expected a name such as eata, "
            "`{eata: {lr: 0.001}}`, or `{eata: {lr: 0.001}, name: eata_fast}`"
        )
    ((of, hyperparameters),) = found.items()
    name = method.get("name", of)
    if ":" in str(name):
        raise ValueError(
            f"methods contains {name}, which cannot be used as an experiment name; expected an explicit name, as in "
            f"`{{'{name}': {{}}, name: mine}}`"
        )
    return str(name), str(of), hyperparameters if hyperparameters is not None else {}


def _join_pieces(base: str, pieces: Mapping[str, object]) -> str:
    return "_".join([base, *(str(pieces[piece]) for piece in PIECES if piece in pieces)])


def _experiment_names(name: str, content: Any) -> list[str]:
    """Return the names of the experiments from the section *content*; none if it is malformed, reported elsewhere."""
    try:
        return list(expand_protocols({name: content}))
    except ValidationError:
        return []
