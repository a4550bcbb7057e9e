"""The models in a benchmark file: everything that the file and the leaderboard need, without torch.

A section names its loader as text, as a method's entry does. To add a kind, write its section here, add it to a
union, and write its module in `models/`. Another package names its section as an entry point.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self, cast, get_args

from pydantic import (
    BeforeValidator,
    Field,
    JsonValue,
    SerializeAsAny,
    ValidationInfo,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    field_validator,
    model_validator,
)

from tta_pipeline.benchmarks.file_context import FileContext
from tta_pipeline.benchmarks.training_recipe import Recipe
from tta_pipeline.util.added import load_added
from tta_pipeline.util.config_model import ConfigModel, Name
from tta_pipeline.util.files import hash_file
from tta_pipeline.util.user_functions import find_function_file


def _refuse_eight_bits(value: object) -> object:
    if isinstance(value, int | float) and value > 1:
        raise ValueError(
            f"{value:g} is above 1; expected at most 1, since pixels are scaled to [0, 1] before normalisation: "
            "divide values for pixels from 0 to 255 by 255"
        )
    return value


GROUP = "tta_pipeline.models"
"""Group of the entry points by which other packages add kinds of model: each is the import path of a `ModelSection`."""
Mean = Annotated[float, Field(ge=0, le=1), BeforeValidator(_refuse_eight_bits)]
Deviation = Annotated[float, Field(gt=0, le=1), BeforeValidator(_refuse_eight_bits)]


class ModelSection(ConfigModel):
    """A section that describes a model; this section and `implementation` define what the kinds of model differ in."""

    kind: str
    implementation: ClassVar[str]
    """`module:name` of the `ModelKind` that loads the model; it needs torch, and is imported when a model is."""
    needed_library: ClassVar[tuple[str, str] | None] = None
    """The module that the kind imports, and the extra of this project that installs it; None: none."""
    needs_num_classes: ClassVar[bool] = False
    """Whether the number of outputs must be given, since no published weights have it."""

    @property
    def training(self) -> "TrainedModel | None":
        """How the benchmark trains the model; None if it does not."""
        return None

    @property
    def network_name(self) -> str:
        """Library and architecture as far as the benchmark file names them, such as `timm resnet50.a1_in1k`."""
        names = (getattr(self, field, None) for field in ("architecture", "hf", "factory"))
        return f"{self.kind} {next(filter(None, names), '')}"

    def with_templates(self, templates: tuple[str, ...]) -> Self:
        """Return the section with the texts *templates* of a dataset, if its model reads texts."""
        del templates
        return self

    def problems(self, name: str, file: FileContext) -> Iterator[str]:
        """Yield a sentence for each problem of this model, called *name*, with the other sections of *file*."""
        del name, file
        yield from ()


class NetworkSection(ModelSection):
    """A section that describes a network, which can be trained."""

    has_weights: ClassVar[bool] = True
    """Whether the network has weights from which training can start."""

    def with_weights_file(self, path: Path, **normalisation: tuple[float, ...]) -> "NetworkSection | None":
        """Return the section of the network with weights in the file *path*, and `mean` and `std` as *normalisation*.

        None: the kind has no weights in files.

        Raises:
            ValidationError: the normalisation is invalid.
        """
        del path, normalisation
        return None

    def with_random_weights(self, num_classes: int) -> "PythonModel | None":
        """Return the section of the network with random weights and *num_classes*; None if it has its own weights."""
        del num_classes
        return None


class SmallNetwork(NetworkSection):
    """A small convolutional network with batch norm, for images of 8 pixels and more."""

    implementation = "tta_pipeline.models.small_network:Small"
    has_weights = False
    kind: Literal["small"]
    width: int = Field(default=16, ge=1, le=4_096)
    """Number of channels of the first stage, at most 4,096; the later two stages have two and four times as many."""


class LibraryModel(NetworkSection):
    """An architecture of a library, with weights that the library publishes."""

    architecture: str

    def with_weights_file(self, path: Path, **normalisation: tuple[float, ...]) -> "CheckpointModel":
        """Return the section for the file *path* and this architecture."""
        described = {"architecture": self.architecture, "path": path, "sha256": _hash_if_there(path), **normalisation}
        return CheckpointModel.model_validate({"kind": "checkpoint", "library": self.kind, **described})


class TorchvisionModel(LibraryModel):
    """A torchvision classifier with the preprocessing that its weights were trained with."""

    implementation = "tta_pipeline.models.torchvision_models:Torchvision"
    kind: Literal["torchvision"]
    architecture: Name
    """Name of the architecture in torchvision, such as `resnet50`."""
    weights: str = "DEFAULT"
    """A member of the architecture's weights enum, such as `IMAGENET1K_V1`."""
    classes: Path | None = None
    """Classes of the model's outputs, in order, if the benchmark has only some of them, or several stand for a class.
    A list that comes with the project, such as `imagenet`, a JSON file, or `meta.mat`. Default: the benchmark's
    classes, or ImageNet's 1,000 if the model has 1,000 outputs and the benchmark some of these classes."""

    def with_random_weights(self, num_classes: int) -> "PythonModel":
        """Return the section of torchvision's function that makes the network."""
        return PythonModel.untrained(f"torchvision.models:{self.architecture}", num_classes=num_classes)


class TimmModel(LibraryModel):
    """A timm classifier (extra `timm`) with the mean and standard deviation of its weights."""

    implementation = "tta_pipeline.models.timm_models:Timm"
    needed_library = ("timm", "timm")
    kind: Literal["timm"]
    architecture: str
    """Architecture with the tag of the weights, such as `resnet50.a1_in1k`."""
    classes: Path | None = None
    """Classes of the model's outputs, as for a torchvision model."""

    def with_random_weights(self, num_classes: int) -> "PythonModel":
        """Return the section of timm's function that makes the network."""
        name = self.architecture.partition(".")[0]
        return PythonModel.untrained("timm:create_model", model_name=name, num_classes=num_classes)


class CheckpointModel(NetworkSection):
    """An architecture of torchvision or timm with weights from your file."""

    implementation = "tta_pipeline.models.checkpoint_models:Checkpoint"
    needs_num_classes = True
    kind: Literal["checkpoint"]
    library: Literal["torchvision", "timm"] = "torchvision"
    """Library with the architecture."""
    architecture: str
    """Name of the architecture in the library."""
    path: Path
    """safetensors file, or a state dict from `torch.save`; loading it runs no code."""
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    """sha256 of the file, as printed by `sha256sum`."""
    state: str | None = None
    """Key of the state dict in the file if it has several, such as `state_dict_ema`."""
    mean: tuple[Mean, Mean, Mean]
    """Mean of each channel, as a fraction of the brightest value: 0 to 1."""
    std: tuple[Deviation, Deviation, Deviation]
    """Standard deviation of each channel, above 0 and at most 1. Wrong values cost points: check them with
    `tta-pipeline models check`."""
    classes: Path | None = None
    """Classes of the model's outputs, as for a torchvision model."""


def _hash_if_there(path: Path) -> str:
    return hash_file(path) if path.is_file() else "0" * 64


class PythonModel(NetworkSection):
    """A network from your Python function or class, with weights from your file."""

    implementation = "tta_pipeline.models.python_models:Python"
    needs_num_classes = True
    kind: Literal["python"]
    factory: str
    """`module:name` of a function or class that returns a `torch.nn.Module`, which is called with normalised
    images. The module must be on Python's path or in the working directory. If it has a parameter `num_classes`,
    the number of classes is passed."""
    arguments: dict[str, JsonValue] = Field(default_factory=dict)
    """Arguments of the factory by name."""
    weights: Literal["none"] | Path | None = None
    """safetensors file, or a state dict from `torch.save`, also inside a training checkpoint; loading it runs no
    code. `none`: random weights, to try the pipeline; results are marked as untrained. Without it, the network can
    only be trained."""
    sha256: str | None = Field(default=None, pattern=r"^[0-9a-f]{64}$")
    """sha256 of the weights, as printed by `sha256sum`."""
    state: str | None = None
    """Key of the state dict in the file if it has several, such as `state_dict_ema`."""
    mean: tuple[Mean, Mean, Mean] | None = None
    """Mean of each channel, as a fraction of the brightest value: 0 to 1. Needed with weights;
    with `weights: none`, the default is ImageNet's."""
    std: tuple[Deviation, Deviation, Deviation] | None = None
    """Standard deviation of each channel, above 0 and at most 1. Needed with weights."""
    classes: Path | None = None
    """Classes of the model's outputs, as for a torchvision model."""

    @field_validator("factory")
    @classmethod
    def _found(cls, factory: str) -> str:
        find_function_file(factory)
        return factory

    @model_validator(mode="after")
    def _weights_and_their_facts(self) -> Self:
        facts = ("sha256", "mean", "std")
        if self.is_untrained:
            if given := [name for name in ("sha256", "state") if getattr(self, name) is not None]:
                raise ValueError(
                    f"{', '.join(given)} is set, but weights is none; expected a file of weights, or only mean and std"
                )
            return self
        if self.weights is not None and (missing := [name for name in facts if getattr(self, name) is None]):
            raise ValueError(
                f"weights is set without {', '.join(missing)}; expected sha256, mean and std of the file of weights: "
                "add what is missing"
            )
        if self.weights is None and (given := [name for name in (*facts, "state") if getattr(self, name) is not None]):
            raise ValueError(
                f"{', '.join(given)} is set without weights; expected the file of weights that it describes: add "
                "weights, or remove it"
            )
        return self

    @property
    def is_untrained(self) -> bool:
        """Whether the network is evaluated with random weights."""
        return self.weights == "none"

    @property
    def weights_file(self) -> Path | None:
        """File of the weights, if there is one."""
        return self.weights if isinstance(self.weights, Path) else None

    def with_weights_file(self, path: Path, **normalisation: tuple[float, ...]) -> "PythonModel":
        """Return the section with the file *path* as its weights."""
        described = {"weights": path, "sha256": _hash_if_there(path), **normalisation}
        return PythonModel.model_validate({"kind": "python", "factory": self.factory, **described})

    def with_random_weights(self, num_classes: int) -> "PythonModel":
        """Return the section without weights; a factory gets the number of classes when it is called."""
        del num_classes
        return self.model_copy(update={"weights": "none"})

    @classmethod
    def untrained(cls, factory: str, **arguments: JsonValue) -> Self:
        """Return the section of a *factory* that is called with *arguments*, with random weights."""
        return cls.model_validate({"kind": "python", "factory": factory, "arguments": arguments, "weights": "none"})


def require_commit(revision: str, repository: str) -> str:
    """Return *revision* of a *repository* on the Hugging Face Hub; refuse it if it is no commit.

    Raises:
        ValueError: it is no commit.
    """
    if not re.fullmatch(r"[0-9a-f]{40}", revision):
        address = f"https://huggingface.co/{repository}"
        raise ValueError(
            f"revision {revision!r} is not a commit hash; expected 40 hexadecimal digits, since a branch moves: run "
            f"`git ls-remote {address} {revision or 'main'}` to get it"
        )
    return revision


class HubModel(NetworkSection):
    """A classifier published for timm (the extra `timm`) on the Hugging Face Hub.

    Its mean, standard deviation and number of classes come from its `config.json`.
    """

    implementation = "tta_pipeline.models.hub_models:Hub"
    needed_library = ("timm", "timm")
    kind: Literal["hf"]
    hf: str = Field(pattern=r"^[\w.-]+/[\w.-]+$")
    """Repository, such as `timm/resnet50.a1_in1k`."""
    revision: str
    """Commit of the repository, 40 hexadecimal digits. A branch is not allowed, since it moves."""
    classes: Path | None = None
    """Classes of the model's outputs, as for a torchvision model. Default: `label_names` in its `config.json`, if
    the benchmark's classes are among them."""

    @field_validator("revision")
    @classmethod
    def _is_a_commit(cls, revision: str, info: ValidationInfo) -> str:
        return require_commit(revision, info.data.get("hf", "org/name"))


class ZeroShotModel(ModelSection):
    """The fields of a zero-shot classifier that concern texts."""

    class_names: tuple[str, ...] | Path | None = None
    """Class names for the prompts, in the order of the class map: a list, or a JSON file with a list. Default: the
    names in the class map, with spaces for underscores; for WordNet ids, open_clip's names of ImageNet's classes."""
    templates: Literal["imagenet"] | tuple[str, ...] | None = None
    """Prompts with `{}` for the class name; their features are averaged. `imagenet`: the 80 prompts of the CLIP
    paper. Default: the dataset's prompts, otherwise `a photo of a {}.`."""

    @field_validator("templates")
    @classmethod
    def _have_a_place(cls, templates: str | tuple[str, ...] | None) -> str | tuple[str, ...] | None:
        if isinstance(templates, tuple) and not (templates and all("{}" in text for text in templates)):
            raise ValueError(
                f"templates is {list(templates)}; expected at least one prompt, each with {{}} for the class name"
            )
        return templates

    def with_templates(self, templates: tuple[str, ...]) -> Self:
        """Return the section with the *templates* of a dataset, unless it has its own or there are none."""
        return self.model_copy(update={"templates": templates}) if templates and self.templates is None else self


class OpenClipModel(ZeroShotModel):
    """A zero-shot classifier of open_clip (the extra `clip`): its image tower, and a linear head of text features.

    Images must have the size that the image tower takes.
    """

    implementation = "tta_pipeline.models.clip_models:OpenClip"
    needed_library = ("open_clip", "clip")
    kind: Literal["open_clip"]
    architecture: str
    """Name in open_clip's list, such as `ViT-B-32`, or a JSON file in open_clip's format."""
    pretrained: str | None = None
    """Tag of published weights, such as `laion2b_s34b_b79k`, instead of `weights`."""
    weights: Path | None = None
    """File of weights; loading it runs no code."""
    sha256: str | None = Field(default=None, pattern=r"^[0-9a-f]{64}$")
    """sha256 of the file, as printed by `sha256sum`."""

    @model_validator(mode="after")
    def _one_source_of_weights(self) -> Self:
        if (self.pretrained is None) == (self.weights is None):
            raise ValueError("pretrained and weights are both set or both missing; expected exactly one of them")
        if (self.weights is None) != (self.sha256 is None):
            raise ValueError("only one of weights and sha256 is set; expected both or neither")
        return self


class TransformersModel(ZeroShotModel):
    """A zero-shot classifier of transformers (the extra `transformers`): SigLIP, SigLIP 2 of one image size, or CLIP.

    Mean, deviation, scale and bias come from the model. Images must have the size that the image tower takes.
    """

    implementation = "tta_pipeline.models.transformers_models:Transformers"
    needed_library = ("transformers", "transformers")
    kind: Literal["transformers"]
    hf: Annotated[str, Field(pattern=r"^[\w.-]+/[\w.-]+$")] | None = None
    """Repository on the Hugging Face Hub, such as `google/siglip2-base-patch16-224`."""
    revision: str | None = None
    """Commit of the repository, 40 hexadecimal digits. A branch is not allowed, since it moves."""
    folder: Path | None = None
    """Folder with config, tokenizer, preprocessing and `model.safetensors`, as written by `save_pretrained`,
    instead of `hf`. Loading it runs no code."""
    sha256: str | None = Field(default=None, pattern=r"^[0-9a-f]{64}$")
    """sha256 of `model.safetensors` in the folder, as printed by `sha256sum`."""

    @model_validator(mode="after")
    def _one_source_of_weights(self) -> Self:
        if (self.hf is None) == (self.folder is None):
            raise ValueError("hf and folder are both set or both missing; expected exactly one of them")
        if (self.folder is None) != (self.sha256 is None):
            raise ValueError("only one of folder and sha256 is set; expected both or neither")
        if self.hf is None and self.revision is not None:
            raise ValueError(
                "revision is set without hf; expected revision only for a repository of the Hugging Face Hub: remove it"
            )
        if self.hf is not None:
            require_commit(self.revision or "", self.hf)
        return self


def find_added(kind: str) -> type[ModelSection] | None:
    """Return the section of the *kind* that another package adds; None if no package does.

    Raises:
        ValueError: several packages have a kind of this name, or what the package names is no section.
    """
    what = "a ModelSection"
    found = load_added(GROUP, kind, ours=_own_kinds(), is_right=_is_section, what=what, field="kind")
    return cast("type[ModelSection] | None", found)


def _is_section(found: object) -> bool:
    return isinstance(found, type) and issubclass(found, ModelSection)


def _or_added(value: Any, handler: ValidatorFunctionWrapHandler) -> Any:
    """Validate a section *value* of a kind that another package adds; leave the others to *handler*."""
    if isinstance(value, ModelSection):
        return value
    kind = value.get("kind") if isinstance(value, dict) else None
    section = find_added(kind) if isinstance(kind, str) else None
    return section.model_validate(value) if section else handler(value)


def _or_added_network(value: Any, handler: ValidatorFunctionWrapHandler) -> Any:
    found = _or_added(value, handler)
    if not isinstance(found, NetworkSection):
        raise ValueError(  # noqa: TRY004 - a bad value to pydantic
            f"kind {found.kind} is not a network; expected a network that can be trained, such as small or torchvision"
        )
    return found


_OwnPretrained = TorchvisionModel | TimmModel | CheckpointModel | PythonModel | HubModel
_OwnNetwork = Annotated[SmallNetwork | _OwnPretrained, Field(discriminator="kind")]
AnyNetwork = Annotated[SerializeAsAny[_OwnNetwork], WrapValidator(_or_added_network)]
"""A network to train, from scratch or from its weights."""


class TrainedModel(Recipe, ModelSection):
    """A network that is trained on the benchmark's own training images."""

    implementation = "tta_pipeline.models.trained_models:Trained"
    kind: Literal["trained"]
    network: AnyNetwork = SmallNetwork(kind="small")
    """Network to train: `small`, or any other kind of model. `width: 8` is short for the small network of this
    width."""
    fine_tune: bool = False
    """Start from the weights of `network` instead of random weights. A last layer for another number of classes is
    replaced."""

    @model_validator(mode="before")
    @classmethod
    def _with_width(cls, value: Any) -> Any:
        if not isinstance(value, dict) or "width" not in value:
            return value
        if "network" in value:
            raise ValueError(
                "width and network are both set; expected only one of them, since width belongs to the small network: "
                "remove the other"
            )
        rest = {name: content for name, content in value.items() if name != "width"}
        return {**rest, "network": {"kind": "small", "width": value["width"]}}

    @model_validator(mode="after")
    def _has_weights_to_start_from(self) -> Self:
        if self.fine_tune and not self.network.has_weights:
            raise ValueError(
                "fine_tune is set, but the small network has no weights to start from; expected a network with "
                "weights: choose another network, or remove fine_tune"
            )
        return self

    def problems(self, name: str, file: FileContext) -> Iterator[str]:
        """Yield why the model cannot be trained on the training images of *file*."""
        if not file.images.has_train:
            yield (
                f"models.{name}.kind is 'trained', but there are no training images; expected images.train: add it, "
                "or choose another kind"
            )
            return
        found = f"models.{name}.loader is {self.loader}"
        if self.loader == "webdataset" and file.images.is_remote:
            yield f"{found}, but images.root is a URL; expected loader indexed, or local shards: download them"
        if self.loader != "imagefolder":
            return
        if not file.images.has_loose_train:
            yield (
                f"{found}, but images.train has no loose file for every image; expected loader indexed or webdataset, "
                "or training images unpacked into a folder of class folders"
            )
        elif file.train_shards is not None and file.train_shards.changes_images:
            yield (
                f"{found}, but train_shards changes the images (format, resize, center_crop or function); expected "
                "loader indexed or webdataset, since the loose files have other pixels"
            )

    @property
    def training(self) -> "TrainedModel":
        """The section itself."""
        return self

    @property
    def network_name(self) -> str:
        """Library and architecture of the network that is trained."""
        return self.network.network_name


_OwnModel = Annotated[TrainedModel | _OwnPretrained | OpenClipModel | TransformersModel, Field(discriminator="kind")]
AnyModel = Annotated[SerializeAsAny[_OwnModel], WrapValidator(_or_added)]
"""A model to evaluate."""


def _own_kinds() -> tuple[str, ...]:
    """Return the kinds of this project."""
    (kinds, *_) = get_args(_OwnModel)
    return ("small", *(get_args(kind.model_fields["kind"].annotation)[0] for kind in get_args(kinds)))
