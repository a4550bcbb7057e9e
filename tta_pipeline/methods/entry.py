"""Catalogue entries of methods, and the hyperparameters that methods share; without torch."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from pydantic import Field, model_validator

from tta_pipeline.errors import AdaptationError
from tta_pipeline.util.config_model import MAX_COUNT, ConfigModel
from tta_pipeline.util.nearest_names import name_choices
from tta_pipeline.util.source_code import load_reference

PRESETS = ("imagenet", "cifar", "imagenet_vit")
"""Names of presets; only methods that fit a ViT-B, and whose authors publish settings for it, have `imagenet_vit`."""
RESNET_PRESETS = ("imagenet", "cifar")
"""Presets for a network with batch norm."""
PIECES = ("loss", "params", "reset")
"""Hyperparameters that turn a method into another method; they are part of its name, also in tables."""

Published = Mapping[str, Mapping[str, object]]
"""Datasets for which the values of a preset were published, each with the values that differ from the preset."""
USUAL_SETS: Mapping[str, Published] = {
    "imagenet": {"imagenet_c": {}},
    "cifar": {"cifar_10_c": {}, "cifar_100_c": {}},
    "imagenet_vit": {"imagenet_c": {}},
}
"""Datasets for which most methods have values, by preset."""
NetworkFamily = Literal["resnet", "vit", "clip"]
"""Kinds of network for which papers have values: with batch norm, such as a ResNet; a ViT; CLIP's towers."""
METHODS_PAGE = "docs/reference/methods.md"
"""The page that lists the methods and their hyperparameters."""


class Hyperparameters(ConfigModel):
    """Hyperparameters of a method; a method without any uses this class itself."""

    listed_in: ClassVar[str] = METHODS_PAGE
    takes_gradients: ClassVar[bool] = False
    """Whether the method takes gradients, which would vanish in fp16."""
    own_ways: ClassVar[frozenset[str]] = frozenset()
    """Hyperparameters that choose between our computation and the authors' code's; either is published."""
    code_of_choices: ClassVar[Mapping[str, Mapping[str, str]]] = {}
    """Code that only one choice runs, `<module>:<name>` by hyperparameter and choice. It is imported by name, so that
    an edit outdates only the results whose hyperparameters choose it."""

    def chosen_code(self) -> dict[str, str]:
        """Return `<module>:<name>` of the code that these values choose, by hyperparameter."""
        chosen = {name: codes.get(getattr(self, name)) for name, codes in self.code_of_choices.items()}
        return {name: code for name, code in chosen.items() if code is not None}

    def import_choice(self, name: str) -> Any:
        """Import the code that the value of the hyperparameter *name* chooses; None if it needs no separate code.

        Raises:
            AdaptationError: the code cannot be imported.
        """
        code = self.chosen_code().get(name)
        if code is None:
            return None
        try:
            return load_reference(code)
        except ValueError as error:
            raise AdaptationError(
                f"{name} is {getattr(self, name)!r}, and {error}; expected <module>:<name>, as `code_of_choices` "
                "names it"
            ) from error


class GradientHyperparameters(Hyperparameters):
    """Hyperparameters of every method with a gradient step on the network."""

    takes_gradients: ClassVar[bool] = True

    lr: float = Field(gt=0, allow_inf_nan=False)
    """Learning rate."""
    optimizer: Literal["sgd", "adam", "adamw"] = "sgd"
    """Optimiser of the adapted parameters."""
    momentum: float = Field(default=0.9, ge=0, lt=1)
    """Momentum of SGD, first beta of Adam and AdamW."""
    nesterov: bool = False
    """Whether the momentum of SGD is Nesterov's."""
    weight_decay: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    """Weight decay of the adapted parameters, towards zero; AdamW applies it separately from the gradient."""
    steps: int = Field(default=1, ge=1, le=MAX_COUNT)
    """Number of updates for each batch."""
    episodic: bool = False
    """Whether the method is reset before every batch."""

    @model_validator(mode="after")
    def _has_momentum(self) -> "GradientHyperparameters":
        if self.nesterov and (self.optimizer != "sgd" or self.momentum == 0):
            raise ValueError(
                f"nesterov is true with optimizer {self.optimizer} and momentum {self.momentum:g}; expected optimizer "
                "sgd and a momentum above 0: correct one of them"
            )
        return self


class TopHyperparameters(GradientHyperparameters):
    """Hyperparameters of every method that does not adapt the norm layers at the top of a network."""

    frozen_layers: tuple[str, ...] | None = None
    """Names of the norm layers that do not adapt, or of modules that contain them, such as `encoder.blocks.9`; by
    default the top is found. With an empty list all adapt. Required for a transformer whose blocks are not found."""


class ViewHyperparameters(GradientHyperparameters):
    """Hyperparameters of every method that learns from random views of a batch."""

    own_ways: ClassVar[frozenset[str]] = frozenset({"augment_per"})

    augment_per: Literal["image", "batch"] = "image"
    """Whether each image of a view has its own random draws, or the batch shares them, as in the authors' code."""


class MemoryHyperparameters(GradientHyperparameters):
    """Hyperparameters of every method that learns from images that it has stored."""

    steps: Literal[1] = 1
    """Number of updates for every `update_frequency` images."""
    update_frequency: int = Field(default=64, ge=1, le=MAX_COUNT)
    """Number of images of the stream from one update to the next."""


@dataclass(frozen=True, kw_only=True)
class Paper:
    """A publication; `authors` begins with the first author, as in a BibTeX entry."""

    authors: str
    title: str
    venue: str
    year: int
    arxiv: str | None = None

    def bibtex(self, key: str) -> str:
        """Return a BibTeX entry with the key *key*."""
        fields = {"author": self.authors, "title": f"{{{self.title}}}", "booktitle": self.venue, "year": str(self.year)}
        fields |= {"eprint": self.arxiv, "archiveprefix": "arXiv"} if self.arxiv else {}
        return (
            f"@inproceedings{{{key},\n"
            + "".join(f"  {name} = {{{value}}},\n" for name, value in fields.items())
            + "}\n"
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class MethodEntry:
    """One method: its code, and its authors' settings for each family of benchmarks."""

    implementation: str
    """`<module>:<class>`, imported only when an evaluation starts."""
    summary: str
    """Summary in one sentence, for the user."""
    presets: Mapping[str, Hyperparameters]
    """Settings of the authors by benchmark family."""
    published: Mapping[str, Published] = field(default_factory=lambda: USUAL_SETS)
    """Datasets for which settings were published, by preset; a preset that is missing was published for no network."""
    source_data: Literal["unused", "required"] = "unused"
    """Whether the method reads clean batches while it is built."""
    without_source_data: str = ""
    """Name of the method that this one would be without clean batches, as an alternative."""
    needs: Literal["any", "vit", "clip"] = "any"
    """Kind of model that the method needs: a ViT, CLIP, or any model with the layers in `layers`."""
    layers: str = ""
    """Layers that the method adapts or reads, in words; without them it cannot be built."""
    adapts: str = ""
    """What changes from batch to batch, in words; empty if nothing does."""
    prediction: str = "before the update"
    """Which prediction of an adapting method counts, in words."""
    written_from: str = "paper"
    """Basis of the code, in words: the paper, the authors' code, or less."""
    min_batch_size: int = 1
    """Smallest accepted batch size of a stream; the last batch may be smaller."""
    lr_of_batch_size: Mapping[str, Callable[[int], float]] = field(default_factory=dict)
    """Learning rate as a function of the batch size, for the presets in which it depends on the batch size."""
    predicts_by_network: bool = False
    """Whether predictions are the network's own, from before an update, so that they can also be made after it."""
    predicts_frozen: bool = False
    """Whether `Method.predict_unadapted` predicts as the method does without a further update, although the method does
    not set `predicts_by_network`."""
    passes: float = 1
    """Largest number of passes of a sample through the network, for planning; a backward pass counts as two."""
    backwards: float = 0
    """Largest number of backward passes of a sample, each counted twice in `passes`."""
    paper: Paper | None = None
    """Publication of the method, for citations."""

    @property
    def can_freeze(self) -> bool:
        """Whether the method can stop adapting and still predict with what it has learned."""
        return self.predicts_by_network or self.predicts_frozen

    def configure(
        self, preset: str, changes: Mapping[str, object], *, batch_size: int | None = None
    ) -> Hyperparameters:
        """Return the preset's hyperparameters for *batch_size* (None: unknown), with *changes* applied and validated.

        Raises:
            pydantic.ValidationError: a change names an unknown hyperparameter, or its value is out of range.
            ValueError: the method lacks the preset.
        """
        if preset not in self.presets:
            choices = name_choices(preset, self.presets, listed_in=METHODS_PAGE)
            raise ValueError(f"preset is {preset!r}; the method expects one of {choices}")
        defaults = self.presets[preset]
        values = defaults.model_dump()
        if batch_size is not None and preset in self.lr_of_batch_size:
            values["lr"] = self.lr_of_batch_size[preset](batch_size)
        return type(defaults).model_validate({**values, **changes})

    def is_preset(self, settings: Hyperparameters, *, batch_size: int | None, but_for: Collection[str] = ()) -> bool:
        """Return whether *settings* equal a preset for *batch_size*, ignoring the hyperparameters in *but_for*."""
        presets = (self.configure(preset, {}, batch_size=batch_size) for preset in self.presets)
        return any(_equal(settings, preset, but_for) for preset in presets)

    def is_published(
        self, settings: Hyperparameters, *, dataset: str | None, family: NetworkFamily | None, batch_size: int | None
    ) -> bool:
        """Return whether *settings* were published for this method on *dataset* with a network of *family*.

        None is an unknown dataset or network, for which nothing was published; a method without hyperparameters has
        nothing to publish.
        """
        if not type(settings).model_fields:
            return True
        preset = "cifar" if (dataset or "").startswith("cifar") else "imagenet"
        if family == "vit" and preset == "imagenet":
            preset = "imagenet_vit"
        changes = self.published.get(preset, {}).get(dataset or "")
        if changes is None or preset not in self.presets or family != self._family_of(preset):
            return False
        return _equal(settings, self.configure(preset, changes, batch_size=batch_size))

    def _family_of(self, preset: str) -> NetworkFamily:
        """Return the kind of network that *preset* is for."""
        match self.needs:
            case "vit" | "clip" as family:
                return family
            case _:
                return "vit" if preset == "imagenet_vit" else "resnet"

    def named(self, method: str, preset: str, settings: Hyperparameters) -> str:
        """Return the name of *method* plus each piece in which *settings* differ from the preset, such as tent+come."""
        usual = self.presets[preset]
        pieces = [(getattr(settings, piece, None), getattr(usual, piece, None)) for piece in PIECES]
        return "+".join([method, *(str(found) for found, expected in pieces if found != expected)])

    def require_batch_size(self, batch_size: int | None) -> None:
        """Raise an error if the stream's batches are too small; None is an unknown size.

        Raises:
            ValueError: *batch_size* is below `min_batch_size`.
        """
        if batch_size is not None and batch_size < self.min_batch_size:
            raise ValueError(
                f"batch_size is {batch_size}; expected at least {self.min_batch_size} for this method: raise it, or "
                "use another method"
            )


def _equal(settings: Hyperparameters, others: Hyperparameters, but_for: Collection[str] = ()) -> bool:
    """Return whether both have the same values, except in *but_for* and in what is only a way to compute."""
    ignored = {*but_for, *settings.own_ways}
    return settings.model_dump(exclude=ignored) == others.model_dump(exclude=ignored)
