"""Base of the kinds of model: a section of a benchmark file names one of these classes, which loads it."""

from abc import ABC, abstractmethod
from collections.abc import Collection
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any, Generic, TypeVar, cast, overload

from tta_pipeline.benchmarks.model_specs import ModelSection, NetworkSection
from tta_pipeline.data.labels.label_files import read_classes
from tta_pipeline.data.labels.output_map import OutputMap
from tta_pipeline.data.labels.shipped_lists import shipped_classes
from tta_pipeline.errors import ClassCountError, EvaluationError
from tta_pipeline.models.architecture import Architecture, NetworkWeights
from tta_pipeline.models.libraries import import_library
from tta_pipeline.models.loaded_model import LoadedModel
from tta_pipeline.models.select_outputs import let_outputs_share_classes, select_classes
from tta_pipeline.util.added import load_checked
from tta_pipeline.util.json_values import JsonObject
from tta_pipeline.util.own_code import is_own
from tta_pipeline.util.source_code import source_sha256

SectionT = TypeVar("SectionT", bound=ModelSection)
NetworkT = TypeVar("NetworkT", bound=NetworkSection)


@dataclass(frozen=True, kw_only=True)
class ModelContext:
    """Everything that is needed to load a model and that its section does not contain."""

    name: str
    """Name of the model in the benchmark file."""
    classes: tuple[str, ...]
    """Classes of the class map."""
    output_map: OutputMap | None = None
    """The outputs that stand for each of these classes; None: one output is one class."""
    source_model: Path = Path()
    """Path of the weights that the benchmark has trained."""
    image_size: int | None = None
    """Height and width in pixels of images to try a network of the user's code with; None: do not try it."""
    text_features: Path | None = None
    """Folder that caches text features; None: no cache."""

    def are_outputs(self, names: Collection[str]) -> bool:
        """Return whether a model whose outputs have these *names* can predict the classes."""
        return self._shares_outputs(names) or set(self.classes) <= set(names)

    def match_outputs(self, model: LoadedModel, own_classes: tuple[str, ...], *, named: str) -> LoadedModel:
        """Return *model*, whose outputs are *own_classes*, as a classifier of the classes.

        Raises:
            EvaluationError: *own_classes*, which *named* has, are not the outputs of *model* or lack some classes.
        """
        if self.output_map and (self._shares_outputs(own_classes) or not set(self.classes) <= set(own_classes)):
            return let_outputs_share_classes(model, own_classes, self.output_map, named=named)
        return select_classes(model, own_classes, self.classes, named=named)

    def _shares_outputs(self, names: Collection[str]) -> bool:
        """Return whether all outputs of the output map are among *names*."""
        return self.output_map is not None and set(chain.from_iterable(self.output_map.outputs.values())) <= set(names)


@dataclass(frozen=True, kw_only=True)
class OwnTransform:
    """How a library prepares an image for a model."""

    size: int
    """Height and width of the crop in pixels."""
    resize: int
    """Length of the shorter side before the crop, in pixels."""
    interpolation: str
    keeps_ratio: bool = True
    """Whether the resize keeps the ratio of the sides."""
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()


class ModelKind(ABC, Generic[SectionT]):
    """A kind of model, for one *section* of a benchmark file."""

    def __init__(self, section: SectionT) -> None:
        self.section = section

    def load(self, context: ModelContext) -> LoadedModel:
        """Return the model, with one output for each class, or with the outputs that stand for it.

        Raises:
            EvaluationError: the weights are missing, unknown or not the expected ones, or do not predict the classes.
                It is a `ClassCountError` if there are more or fewer outputs.
        """
        model = self.load_for_classes(context)
        if model.num_labels != len(context.classes):
            raise ClassCountError(
                f"The model {context.name} predicts {model.num_labels} classes, but the class map has "
                f"{len(context.classes)}; expected as many outputs: use a model for these classes, or name the "
                "model's classes in its field `classes`"
            )
        return replace(model, code={**self.code, **model.code})

    @property
    def code(self) -> JsonObject:
        """Facts that determine the logits with a kind of another package: its code and its section."""
        if not is_own(type(self)):
            return {}
        return {
            "source_sha256": source_sha256(self.section.implementation, only_own=True),
            "section": self.section.model_dump(mode="json"),
        }

    @abstractmethod
    def load_for_classes(self, context: ModelContext) -> LoadedModel:
        """Return the model, with only the outputs for the classes if it has names for its outputs.

        Raises:
            EvaluationError: the weights are missing, unknown or not the expected ones, or lack some of the classes.
        """

    def load_described(self, num_classes: int | None) -> LoadedModel:
        """Return the model without a benchmark, with all its outputs.

        Raises:
            EvaluationError: as for `load`; or *num_classes*, the names of the classes or the benchmark is missing.
        """
        del num_classes
        raise EvaluationError(
            f"Models of kind {self.section.kind} exist only in a benchmark; expected another kind: name weights instead"
        )

    def check(self, *, name: str, num_classes: int | None, image_size: int) -> None:
        """Raise the errors that `load` would raise, without a download.

        Args:
            name: Name of the model in the benchmark file.
            num_classes: Number of outputs that the model must have; None: unknown.
            image_size: Height and width of the images in pixels.

        Raises:
            PipelineError: see `load`.
        """
        del name, num_classes, image_size
        if self.section.needed_library:
            module, extra = self.section.needed_library
            import_library(module, extra=extra)

    def own_transforms(self) -> tuple[OwnTransform, ...]:
        """Return the transforms for which the weights were made, the usual one first; none if they are unknown.

        Raises:
            EvaluationError: a library is not installed, or has no such model.
        """
        return ()


class NetworkKind(ModelKind[NetworkT]):
    """A kind of network: it can be trained, and has all its outputs until those for the classes are chosen."""

    @abstractmethod
    def architecture(self) -> Architecture:
        """Return the network without weights.

        Raises:
            EvaluationError: its library is not installed.
        """

    @abstractmethod
    def weights(self, num_classes: int | None) -> NetworkWeights:
        """Return the weights.

        Args:
            num_classes: Number of outputs that weights from a file must have; None: any number.

        Raises:
            EvaluationError: the weights are missing, unknown or not the expected ones.
        """

    def load_all(self, name: str, *, num_classes: int, image_size: int | None = None) -> LoadedModel:
        """Return the model *name* with all its outputs; *num_classes* as for `weights`, *image_size* for a context.

        Raises:
            EvaluationError: see `weights`.
        """
        del image_size
        return self.architecture().make_model(name, self.weights(num_classes))

    def load_for_classes(self, context: ModelContext) -> LoadedModel:
        """Return the model with its outputs matched to the classes, if their names are known; otherwise as it is."""
        classes, named = context.classes, getattr(self.section, "classes", None)
        own = read_classes(named) if named else classes
        model = self.load_all(context.name, num_classes=len(own), image_size=context.image_size)
        if named:
            return context.match_outputs(model, own, named=str(named))
        imagenet = shipped_classes("imagenet")
        if model.num_classes == len(imagenet) > len(classes) and context.are_outputs(imagenet):
            return context.match_outputs(model, imagenet, named="imagenet")
        return model

    def load_described(self, num_classes: int | None) -> LoadedModel:
        """Return the model with all its outputs."""
        if num_classes is None and self.section.needs_num_classes:
            raise EvaluationError(
                "num_classes is missing; expected a number for your own weights or network: pass num_classes"
            )
        return self.load_all("a description", num_classes=num_classes or 0)

    def load_published(self, weights: str) -> LoadedModel:
        """Return the model with the published *weights*: "pretrained", or their name.

        Raises:
            EvaluationError: there are no such weights.
        """
        if weights != "pretrained":
            raise EvaluationError(
                f"weights is {weights!r}; expected pretrained, a file, a state dict or None for {self.section.kind}"
            )
        return self.load_all(self.section.network_name, num_classes=0)

    def start_identity(self) -> str:
        """Return the identity of the weights that the section names; empty if it has their sha256 or their commit.

        Raises:
            EvaluationError: the library is not installed, or has no such weights.
        """
        return ""

    def check_architecture(self) -> None:
        """Raise an error if the library lacks the architecture.

        Raises:
            PipelineError: there is no such architecture; the message names others.
        """

    def choose_published(self, weights: str | None) -> NetworkT:
        """Return the section with the published weights called *weights*, None: the usual ones, for a new project.

        Raises:
            EvaluationError: there are no such weights.
        """
        if weights is not None:
            raise EvaluationError(
                f"--weights is {weights}; expected a file, none, or no --weights for the published weights: check the "
                "path"
            )
        return self.section


@overload
def kind_of(section: NetworkT) -> NetworkKind[NetworkT]: ...


@overload
def kind_of(section: SectionT) -> ModelKind[SectionT]: ...


def kind_of(section: ModelSection) -> ModelKind[Any]:
    """Return the kind that loads the model of *section*; its module is imported now.

    Raises:
        EvaluationError: another package has the kind, and is faulty.
    """
    return import_kind(type(section))(section)


def import_kind(section: type[ModelSection]) -> type[ModelKind[Any]]:
    """Return the kind that the class *section* names.

    Raises:
        EvaluationError: another package has the kind, and is faulty.
    """
    expected = "a ModelKind: correct the package"
    try:
        found = load_checked(section.implementation, is_right=_is_kind, said=section.__name__, expected=expected)
    except ValueError as error:
        raise EvaluationError(str(error)) from error
    return cast("type[ModelKind[Any]]", found)


def _is_kind(found: object) -> bool:
    return isinstance(found, type) and issubclass(found, ModelKind)
