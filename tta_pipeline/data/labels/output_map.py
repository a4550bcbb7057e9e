"""Classes that several outputs of a model stand for, such as the superclasses of LAION-C."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any, Literal, cast, get_args

from tta_pipeline.errors import ClassMapError
from tta_pipeline.util.identifiers import find_duplicates
from tta_pipeline.util.short_lists import short_repr

Rule = Literal["mean", "max"]
"""How the probabilities of a class's outputs become its score; the scores of all classes are scaled to sum to 1."""


@dataclass(frozen=True, kw_only=True)
class OutputMap:
    """The outputs of a model that stand for each class, and the rule that makes one score of them."""

    rule: Rule
    outputs: Mapping[str, tuple[str, ...]]
    """Names of each class's outputs, such as WordNet ids; the classes are in the order of their labels."""

    @property
    def classes(self) -> tuple[str, ...]:
        """Class names in the order of their labels."""
        return tuple(self.outputs)

    @property
    def sha256(self) -> str:
        """Hash of the rule, and of the classes and their outputs in order."""
        return hashlib.sha256(json.dumps([self.rule, list(self.outputs.items())]).encode()).hexdigest()


def parse_output_map(content: Any, *, where: object) -> OutputMap | None:
    """Return the map in *content*, the JSON of the file *where*; None if the file lists only class names.

    The form is `{"rule": "mean", "outputs": {"fish": ["n01440764", "n01443537"], ...}}`.

    Raises:
        ClassMapError: the rule is unknown, a class has no output, or two classes share an output.
    """
    if not isinstance(content, dict) or not isinstance(content.get("outputs"), dict):
        return None
    if set(content) != {"rule", "outputs"} or content["rule"] not in get_args(Rule):
        other = {name: value for name, value in content.items() if name != "outputs"}
        raise ClassMapError(
            f"{where} has {short_repr(other)} next to outputs; expected only a rule, mean or max: correct it"
        )
    outputs: dict[str, Any] = content["outputs"]
    for name, members in outputs.items():
        is_list = isinstance(members, list) and members and all(isinstance(each, str) for each in members)
        if not name or not is_list:
            raise ClassMapError(
                f"{where} gives class {name!r} the outputs {short_repr(members)}; expected a list of names of a "
                "model's outputs: correct the entry"
            )
    if shared := find_duplicates(chain.from_iterable(outputs.values())):
        raise ClassMapError(
            f"{where} lists the output {shared[0]!r} more than once; expected each output in one class: remove it "
            "from the others"
        )
    by_class = {name: tuple(members) for name, members in outputs.items()}
    return OutputMap(rule=cast("Rule", content["rule"]), outputs=by_class)
