"""The texts of the classes of a zero-shot classifier."""

import hashlib
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TypeVar

from tta_pipeline.benchmarks.model_specs import ZeroShotModel
from tta_pipeline.data.labels.label_files import read_classes
from tta_pipeline.data.labels.shipped_lists import shipped_classes
from tta_pipeline.errors import EvaluationError
from tta_pipeline.models.libraries import import_library
from tta_pipeline.models.loaded_model import LoadedModel
from tta_pipeline.models.model_kind import ModelContext, ModelKind

_NO_WORD = re.compile(r"[0-9]*|n[0-9]{8}")
"""Names of classes that mean nothing to a text tower: numbers and WordNet ids."""
_USUAL_TEMPLATE = "a photo of a {}."
ZeroShotT = TypeVar("ZeroShotT", bound=ZeroShotModel)


class ZeroShotKind(ModelKind[ZeroShotT]):
    """A kind of zero-shot classifier: its outputs are the named classes."""

    def load_described(self, num_classes: int | None) -> LoadedModel:
        """Return the classifier of the classes that the section names."""
        del num_classes
        given = self.section.class_names
        names = read_classes(given) if isinstance(given, Path) else given
        if names is None:
            raise EvaluationError(
                "class_names is missing; expected one name per class, for the prompts of the zero-shot model: add it"
            )
        return self.load(ModelContext(name="a description", classes=names))


@dataclass(frozen=True, kw_only=True)
class ClassTexts:
    """Names of classes in label order, and the functions that make the texts of each."""

    names: tuple[str, ...]
    templates: tuple[Callable[[str], str], ...]

    @cached_property
    def by_class(self) -> list[list[str]]:
        """Texts of each class."""
        return [[template(name) for template in self.templates] for name in self.names]

    @property
    def sha256(self) -> str:
        """Hash of all texts, which decides the features of the classes."""
        return hashlib.sha256(json.dumps(self.by_class).encode()).hexdigest()


def make_class_texts(spec: ZeroShotModel, classes: tuple[str, ...]) -> ClassTexts:
    """Return the texts of *classes* as *spec* describes them.

    Raises:
        EvaluationError: a class has no name in words; or ImageNet's names or templates are requested, and open_clip,
            which contains them, is not installed.
    """
    return ClassTexts(names=_class_names(spec, classes), templates=_templates(spec))


def _class_names(spec: ZeroShotModel, classes: tuple[str, ...]) -> tuple[str, ...]:
    """Return the names of *classes* in texts."""
    if spec.class_names is not None:
        given = spec.class_names
        names = read_classes(given.expanduser()) if isinstance(given, Path) else given
        if len(names) != len(classes):
            raise EvaluationError(
                f"class_names has {len(names)} names; expected one for each of the {len(classes)} classes in the "
                "class map, in its order: add or remove names"
            )
        return names
    imagenet = shipped_classes("imagenet")
    if set(classes) <= set(imagenet):
        words = import_library("open_clip", extra="clip").IMAGENET_CLASSNAMES
        return tuple(words[imagenet.index(wnid)] for wnid in classes)
    if wordless := [name for name in classes if _NO_WORD.fullmatch(name)]:
        raise EvaluationError(
            f"The class {wordless[0]!r} in the class map is not a word that a text tower knows; expected "
            "`class_names` with a name for each class: add it"
        )
    return tuple(name.replace("_", " ") for name in classes)


def _templates(spec: ZeroShotModel) -> tuple[Callable[[str], str], ...]:
    if spec.templates == "imagenet":
        return tuple(import_library("open_clip", extra="clip").OPENAI_IMAGENET_TEMPLATES)
    return tuple(text.replace("{}", "{0}").format for text in spec.templates or (_USUAL_TEMPLATE,))
