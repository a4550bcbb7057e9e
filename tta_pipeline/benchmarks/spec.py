"""What a benchmark file says, read and checked as a whole before anything is built from it."""

import keyword
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, ValidationError, field_validator, model_validator

from tta_pipeline.adaptation.catalogue import PRESETS, Hyperparameters, MethodEntry, find_method
from tta_pipeline.benchmarks.document import read_document
from tta_pipeline.benchmarks.functions import function_file
from tta_pipeline.benchmarks.protocol import Protocol, Subset
from tta_pipeline.errors import BenchmarkFileError
from tta_pipeline.partitions import COMMON_CORRUPTIONS, CORRUPTIONS, SEVERITIES, Cell, cells
from tta_pipeline.processes import MOST_PROCESSES
from tta_pipeline.sections import MOST, Section, Seed

LONGEST_NAME = 100
"""Files are named after what has a name, with more behind it, and a file system takes 255 bytes."""
_NAME = r"^[A-Za-z][A-Za-z0-9_]*$"
Name = Annotated[str, Field(pattern=_NAME, max_length=LONGEST_NAME)]
Corruption = Literal[CORRUPTIONS]  # type: ignore[valid-type]
Severity = Literal[SEVERITIES]  # type: ignore[valid-type]
LARGEST_IMAGE = 16_384
"""Height and width in pixels: three gigabytes as the model's input."""
LARGEST_BATCH = 100_000
_RESERVED_NAMES = {"benchmarks", *map(str.lower, keyword.kwlist)} | {
    "context", "conf", "config", "meta", "arg_dict", "dict", "input_arg_dict", "output_arg_dict", "int", "str", "float",
    "bool", "input", "output", "type",
}  # fmt: skip
"""The first is a folder of the data root; Dagster takes none of the others as the name of a group."""


class CleanImages(Section):
    """The uncorrupted images, in a folder or an archive. A path alone is short for `{path: ...}`."""

    path: Path
    """Folder of class folders, root of torchvision's `ImageNet` (its `val` is taken), tar or tar.gz."""
    layout: Literal["classes", "nested", "flat"] = "classes"
    """Of an archive: class folders; a tar for each class, as ILSVRC2012_img_train.tar; or files alone, as
    ILSVRC2012_img_val.tar, whose classes the ground truth tells."""
    ground_truth: Path | None = None
    """Class of each file of a flat archive: a line for each file, or for each number of the validation images."""
    devkit: Path | None = None
    """The devkit's `meta.mat`, where the ground truth has its numbers."""

    @model_validator(mode="after")
    def _consistent(self) -> "CleanImages":
        if (self.layout == "flat") != (self.ground_truth is not None):
            raise ValueError(
                f"found layout {self.layout} and ground_truth {self.ground_truth}; expected both for a flat archive "
                "and no ground_truth for others"
            )
        return self


def _as_clean_images(value: Any) -> Any:
    return {"path": value} if isinstance(value, str | Path) else value


def _pattern_with_a_group(pattern: str) -> str:
    try:
        num_groups = re.compile(pattern).groups
    except re.error as error:
        raise ValueError(f"{pattern!r} is no regular expression: {error}") from None
    if not num_groups:
        raise ValueError(f"{pattern!r} has no group; expected the class name in parentheses")
    return pattern


Clean = Annotated[CleanImages, BeforeValidator(_as_clean_images)]
ClassPattern = Annotated[str, AfterValidator(_pattern_with_a_group)]


class _MadeHere(Section):
    """Images that are corrupted and stored here."""

    kind: str
    severity_table: Literal["imagenet_c", "tiny_imagenet_c", "cifar_c"]
    """Whose severity constants: those for images of 224, 64 or 32 pixels."""
    encoding: Literal["jpeg", "lossless"] | None = None
    """How the images are stored; by default as the table's authors stored theirs: lossless for cifar_c, jpeg for the
    other two."""
    jpeg_quality: int | None = Field(default=None, ge=1, le=100)
    """Of images stored as jpeg; by default 85, as the authors'."""

    @model_validator(mode="after")
    def _has_quality_of_jpeg_only(self) -> Self:
        if self.jpeg_quality is not None and self.stored_quality is None:
            raise ValueError(
                f"found jpeg_quality {self.jpeg_quality} for images that are stored lossless, as those of "
                f"{self.severity_table} are by default; expected encoding: jpeg with it, or neither"
            )
        return self

    @property
    def stored_quality(self) -> int | None:
        """The quality of the JPEG files; None: images are stored lossless."""
        encoding = self.encoding or ("lossless" if self.severity_table == "cifar_c" else "jpeg")
        return (self.jpeg_quality or 85) if encoding == "jpeg" else None


class DigitsSource(_MadeHere):
    """Handwritten digits of scikit-learn, corrupted by our own generators."""

    kind: Literal["digits"]
    severity_table: Literal["imagenet_c", "tiny_imagenet_c", "cifar_c"] = "cifar_c"
    """Whose severity constants: those for images of 224, 64 or 32 pixels."""
    seed: Seed = 0
    """Of the split into training and test images, and of the corruptions."""
    num_test: int = Field(default=600, ge=10, le=1700)
    """Test images; the rest trains the source model."""


class FolderSource(Section):
    """Images that lie in folders, `<root>/<corruption>/<severity>/<class>/<name>`."""

    kind: Literal["folder"]
    root: Path
    group_depth: Literal[2, 3] = 2
    """3 if each archive was unpacked into a folder of its own, `<root>/<archive>/<corruption>/<severity>/...`."""
    class_pattern: ClassPattern | None = None
    """Regular expression, searched for in `<folder>/<file>`, whose first group is the class; None: the folder is."""
    clean: Clean | None = None
    """The uncorrupted images."""


class ArchiveSource(Section):
    """Tar archives as downloaded, never unpacked: read in one pass, then cell by cell where they lie.

    Leave them there until the shards are written. A compressed one is copied while it is read.
    """

    kind: Literal["archive"]
    archives: tuple[Path, ...] = Field(min_length=1)
    published: Literal["imagenet_c", "tiny_imagenet_c"] | None = None
    """Says that these are the published archives: their md5 sums are then checked."""
    class_pattern: ClassPattern | None = None
    """Regular expression, searched for in `<folder>/<file>`, whose first group is the class; None: the folder is."""
    clean: Clean | None = None
    """The uncorrupted images."""


class NpySource(Section):
    """CIFAR-10-C and CIFAR-100-C as published: `<root>/<corruption>.npy` and `labels.npy`."""

    kind: Literal["npy"]
    root: Path
    clean: Clean | None = None
    """The uncorrupted images."""


class GeneratedSource(_MadeHere):
    """Corruptions made here from clean images: results compare with each other, and with no published table.

    How far they are from results on the published images is not known: these were not at hand to compare with. What the
    encoding alone does was measured with a ResNet-20 on 1,000 images of CIFAR-10, themselves JPEG files of quality 75,
    under the 15 corruptions of cifar_c at severity 5, in batches of 200. The mean error is 58.1 % (source) and 37.7 %
    (norm) when they are stored lossless, 59.8 % and 41.2 % as JPEG of quality 85; under contrast norm has 32.7 % and
    48.5 %.
    """

    kind: Literal["generated"]
    clean: Clean
    """The uncorrupted images."""
    seed: Seed = 0
    """Of the corruptions."""
    jobs: int = Field(default=1, ge=1, le=MOST_PROCESSES)
    """Processes that generate."""


class ShardsSource(Section):
    """Shards that somebody else made, `<root>/<corruption>/<severity>/*.tar`; nothing is rewritten or copied."""

    kind: Literal["shards"]
    root: Path
    clean: Path | None = None
    """Folder of shards with the uncorrupted images."""


class ShardSettings(Section):
    """How a cell becomes shards: one of the three limits, the order, and what is done to the images."""

    num_shards: int | None = Field(default=None, ge=1, le=100_000)
    """At most 100,000."""
    samples_per_shard: int | None = Field(default=None, ge=1, le=MOST)
    """At most 1,000,000,000."""
    max_shard_bytes: int | None = Field(default=None, ge=10240, le=10**15)
    """10,240 to 10^15."""
    order: Literal["permuted", "by_class", "dirichlet", "source"] = "permuted"
    """Permuted is what i.i.d. streams need; by_class and dirichlet are for correlated ones; source is as listed."""
    seed: Seed = 0
    """Of the order: 0 to 2^63 - 1, as every seed."""
    delta: float = Field(default=0.1, ge=1e-6, le=1e6)
    """Concentration of the Dirichlet order, 1e-6 to 1e6: the smaller, the fewer classes at a time."""
    format: Literal["raw", "tensor"] = "raw"
    """Raw keeps the files' bytes; tensor stores decoded pixels as uint8 (H, W, 3) `.npy` members."""
    function: str | None = None
    """`module:name` of a Python function that is given each decoded image, uint8 (H, W, 3), before it is resized and
    cropped, and returns another one, uint8 (H', W', 3)."""
    resize: int | None = Field(default=None, ge=1, le=LARGEST_IMAGE)
    """Length of the shorter side after resizing, in pixels; at most 16,384."""
    center_crop: int | None = Field(default=None, ge=1, le=LARGEST_IMAGE)
    """Height and width of the crop, in pixels; at most 16,384."""
    quality: int = Field(default=95, ge=1, le=100)
    """JPEG quality of images that were resized or cropped; others are not encoded again."""
    labels: bool = False
    """Whether each sample also has a `.cls` and a `.json` member."""
    damaged: Literal["stop", "skip"] = "stop"
    """What to do with an image that is no intact image; what is skipped is named in the manifest."""
    foreign_classes: Literal["refuse", "skip"] = "refuse"
    """What to do with class folders that the class map lacks; what is skipped is counted and named in the manifest."""
    decode_all: bool = False
    """Whether every image is decoded while sharding, and not only its header and end looked at."""
    _needs_limit: ClassVar[bool] = True

    @field_validator("function")
    @classmethod
    def _found(cls, function: str | None) -> str | None:
        if function is not None:
            function_file(function)
        return function

    @model_validator(mode="after")
    def _one_limit(self) -> "ShardSettings":
        given = [name for name in ("num_shards", "samples_per_shard", "max_shard_bytes") if getattr(self, name)]
        if len(given) > 1 or (self._needs_limit and not given):
            raise ValueError(
                f"found limits {given or 'none'}; expected one of num_shards, samples_per_shard, max_shard_bytes"
            )
        if self.max_shard_bytes and self.changes_images:
            raise ValueError(
                "found max_shard_bytes for images whose size will change; expected num_shards or samples_per_shard"
            )
        return self

    @property
    def changes_images(self) -> bool:
        """Whether the stored bytes are others than the source's."""
        return self.format == "tensor" or bool(self.function or self.resize or self.center_crop)


class Transform(ShardSettings):
    """How a shard set becomes another one; without a limit, of as many shards as it has."""

    order: Literal["permuted", "by_class", "dirichlet", "source"] = "source"
    _needs_limit: ClassVar[bool] = False

    def settings(self, *, num_shards: int) -> ShardSettings:
        """Return the settings for a set that has *num_shards* shards."""
        given = self.model_dump()
        has_limit = self.num_shards or self.samples_per_shard or self.max_shard_bytes
        return ShardSettings(**given if has_limit else {**given, "num_shards": num_shards})

    def image_size(self, before: int) -> int:
        """Return height and width of images that had *before* pixels; of what a function returns, those given here."""
        return self.center_crop or self.resize or before


Mean = Annotated[float, Field(ge=0, le=1)]
Deviation = Annotated[float, Field(gt=0, le=1)]


class TrainedModel(Section):
    """A small convolutional network with batch norm, trained on the benchmark's own training images."""

    kind: Literal["trained"]
    epochs: int = Field(default=20, ge=1, le=100_000)
    """1 to 100,000."""
    batch_size: int = Field(default=64, ge=2, le=LARGEST_BATCH)
    """2 to 100,000."""
    lr: float = Field(default=3e-3, gt=0, allow_inf_nan=False)
    """Learning rate."""
    width: int = Field(default=16, ge=1, le=4_096)
    """Channels of the first stage, at most 4,096; the two later ones have two and four times as many."""
    seed: Seed = 0


class TorchvisionModel(Section):
    """A classifier of torchvision with the preprocessing its weights were trained for."""

    kind: Literal["torchvision"]
    architecture: Name
    weights: str = "DEFAULT"
    """A member of the architecture's weights enum, such as `IMAGENET1K_V1`."""
    classes: Path | None = None
    """JSON or `meta.mat` with the names of the model's classes in the order of its outputs, for a benchmark that has
    some of them only: the other outputs are left out."""


class TimmModel(Section):
    """A classifier of timm (the extra `timm`) with the mean and standard deviation of its weights."""

    kind: Literal["timm"]
    architecture: str
    """With the tag of the weights, such as `resnet50.a1_in1k`."""
    classes: Path | None = None
    """As of a torchvision model."""


class CheckpointModel(Section):
    """An architecture of torchvision or timm with the weights of a file of yours."""

    kind: Literal["checkpoint"]
    library: Literal["torchvision", "timm"] = "torchvision"
    architecture: str
    path: Path
    """safetensors, or what `torch.save` wrote of a state dict; no code in it is run."""
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    """Of the file, as `sha256sum` gives it."""
    mean: tuple[Mean, Mean, Mean]
    """Of each channel, as parts of the brightest value: 0 to 1."""
    std: tuple[Deviation, Deviation, Deviation]
    """What the model was trained with, above 0 and at most 1; wrong ones are a known cause of wrong papers."""
    classes: Path | None = None
    """As of a torchvision model."""


AnyModel = TrainedModel | TorchvisionModel | TimmModel | CheckpointModel


class Experiment(Section):
    """A model, an adaptation method and a protocol."""

    model: str
    shards: str | None = None
    """Name of the transform whose shards are evaluated; None: the shards as they were made."""
    group: Name | None = None
    """Of its asset, `<benchmark>_<group>`, for what is materialized together; None: `<benchmark>`. Streams over several
    cells, which have other partitions, are in `<benchmark>_<group>_streams` and `<benchmark>_streams`."""
    method: str
    """A name of the catalogue, or `<module>:<name>` of a `MethodEntry` of your own."""
    preset: Literal[PRESETS] = "imagenet"  # type: ignore[valid-type]
    hyperparameters: dict[str, Any] = Field(default_factory=dict)
    protocol: Protocol = Protocol()
    """How its streams are made of cells; a name alone will do, such as `continual`."""
    subset: Subset | None = None
    """Some samples of each cell; None: all."""
    severities: tuple[Severity, ...] | None = None
    """Of the benchmark's, those that this experiment evaluates; None: all."""
    batch_size: int = Field(default=64, ge=1, le=LARGEST_BATCH)
    """1 to 100,000."""
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    """Of the forward pass; anything but fp32 casts where PyTorch's autocast holds that to be safe."""
    compile: Literal["off", "default", "reduce-overhead", "max-autotune"] = "off"
    """Mode of `torch.compile`; reduce-overhead and max-autotune use CUDA graphs. The last, smaller batch is not
    compiled for."""
    seed: Seed = 0
    """Of the method's random draws, and of the stream's order unless that is the stored one: 0 to 2^63 - 1."""
    seeds: tuple[Seed, ...] | None = Field(default=None, min_length=1, max_length=1_000)
    """Several seeds instead of one, each with a stream of its own order: the stored order is then shuffled by them."""

    @model_validator(mode="after")
    def _configured(self) -> "Experiment":
        if self.protocol.window > 1 and self.batch_size != 1:
            raise ValueError(
                f"found batch_size {self.batch_size} with a window of {self.protocol.window}; expected batch_size 1"
            )
        if self.seeds is not None and len(set(self.seeds)) != len(self.seeds):
            raise ValueError(f"found seeds {list(self.seeds)}; expected each once")
        try:
            self.entry.require_batch_size(max(self.batch_size, self.protocol.window))
            self.configured()
        except ValidationError as error:
            raise ValueError("; ".join(_describe(error, f"{self.method} hyperparameters"))) from None
        except (TypeError, AttributeError, LookupError) as error:
            # An entry of the user's own that is not what it should be, or whose hyperparameters raise.
            raise ValueError(f"method is {self.method!r}, whose entry raised {error!r}; expected another") from error
        return self

    @property
    def all_seeds(self) -> tuple[int, ...]:
        """The seeds, of which each gives a stream of its own."""
        return self.seeds or (self.seed,)

    @property
    def entry(self) -> MethodEntry:
        """What is known of the method.

        Raises:
            ValueError: there is no such method.
        """
        return find_method(self.method)

    def configured(self) -> Hyperparameters:
        """Return the method's hyperparameters, the preset's where the file names none."""
        return self.entry.configure(self.preset, self.hyperparameters)


def _one_for_each_protocol(experiments: Any) -> Any:
    """Return *experiments* as they stand in the file, with one for each protocol where several are named."""
    if not isinstance(experiments, dict):
        return experiments
    found: dict[Any, Any] = {}
    for name, content in experiments.items():
        if not isinstance(content, dict) or not isinstance(content.get("protocols"), list):
            found[name] = content
            continue
        rest = {field: value for field, value in content.items() if field != "protocols"}
        for protocol in content["protocols"]:
            its_name = Protocol.model_validate(protocol).name
            full_name = name if its_name == Protocol().name else f"{name}_{its_name}"
            if full_name in found:
                raise ValueError(f"found {full_name} twice; expected names of experiments, each once")
            found[full_name] = {**rest, "protocol": protocol}
    return found


class Benchmark(Section):
    """One benchmark file."""

    name: Name
    title: str
    source: Annotated[
        DigitsSource | FolderSource | ArchiveSource | NpySource | GeneratedSource | ShardsSource,
        Field(discriminator="kind"),
    ]
    corruptions: tuple[Corruption, ...] = COMMON_CORRUPTIONS
    severities: tuple[Severity, ...] = SEVERITIES
    class_map: Literal["folders"] | Path = "folders"
    """The sorted union of the class folders of the whole source, or a JSON file or devkit `meta.mat`; then pinned."""
    image_size: int = Field(ge=16, le=LARGEST_IMAGE)
    """Height and width of every image, in pixels: 16 to 16,384."""
    shards: ShardSettings | None = None
    """How shards are made; None for a source of shards, which are there."""
    transforms: dict[Name, Transform] = Field(default_factory=dict)
    """Further shard sets made from the first, each image changed."""
    models: dict[Name, Annotated[AnyModel, Field(discriminator="kind")]]
    experiments: Annotated[dict[Name, Experiment], BeforeValidator(_one_for_each_protocol)]
    """By name. `protocols: [reset_each_shift, mixed]` in one of them stands for two, `<name>` and `<name>_mixed`."""

    @model_validator(mode="after")
    def _consistent(self) -> "Benchmark":
        for problem in self._inconsistencies():
            raise ValueError(problem)
        return self

    def _inconsistencies(self) -> Iterator[str]:
        if problem := name_problem(self.name):
            yield f"{problem}: rename the file"
        yield from self._confusable_names()
        for field in ("corruptions", "severities"):
            if len(set(getattr(self, field))) != len(getattr(self, field)) or not getattr(self, field):
                yield f"{field} is {list(getattr(self, field))}; expected at least one, each once"
        for name, experiment in self.experiments.items():
            if experiment.model not in self.models:
                yield f"experiments.{name}.model is {experiment.model!r}; expected one of {', '.join(self.models)}"
            yield from self._inconsistent_experiment(name, experiment)
        trained = [name for name, model in self.models.items() if isinstance(model, TrainedModel)]
        if len(trained) > 1:
            yield f"models {', '.join(trained)} are both of kind trained; expected one, since there is one source_model"
        if trained and not self.has_train:
            yield f"models.{trained[0]}.kind is 'trained' and source.kind {self.source.kind!r} has no training images"
        yield from self._inconsistent_shards()

    def _confusable_names(self) -> Iterator[str]:
        for field in ("models", "transforms", "experiments"):
            names = Counter(name.lower() for name in getattr(self, field))
            alike = [name for name in getattr(self, field) if names[name.lower()] > 1]
            if alike:
                yield f"{field} {', '.join(alike)} differ in case alone; expected names that any disk tells apart"
        for name in self.experiments:
            if f"{name}_checks" in self.experiments:
                yield f"experiments {name} and {name}_checks; expected another name than that of the former's checks"

    def _inconsistent_experiment(self, name: str, experiment: Experiment) -> Iterator[str]:
        unknown = set(experiment.severities or ()) - set(self.severities)
        if unknown or experiment.severities == ():
            yield (
                f"experiments.{name}.severities is {list(experiment.severities or ())}; expected some of "
                f"{list(self.severities)}"
            )
        if experiment.protocol.clean != "never" and not self.has_clean:
            yield f"experiments.{name}.protocol.clean needs clean images; expected source.clean"
        if experiment.entry.source_data == "required" and not self.has_clean:
            yield f"experiments.{name}.method {experiment.method} needs clean images; expected source.clean"

    def _inconsistent_shards(self) -> Iterator[str]:
        if self.shards is None and not isinstance(self.source, ShardsSource):
            yield "shards is missing"
        if self.shards is not None and isinstance(self.source, ShardsSource):
            yield "shards is given, but source.kind is 'shards', which are there; expected transforms to change them"
        if "shards" in self.transforms:
            yield "transforms.shards has the name of the set that it is made from; expected another"
        for name, experiment in self.experiments.items():
            if experiment.shards is not None and experiment.shards not in self.transforms:
                known = ", ".join(self.transforms) or "none, there are no transforms"
                yield f"experiments.{name}.shards is {experiment.shards!r}; expected one of {known}"

    @property
    def cells(self) -> tuple[Cell, ...]:
        """Every (corruption, severity), in the order of the file."""
        return cells(self.corruptions, self.severities)

    def severities_of(self, experiment: str) -> tuple[int, ...]:
        """Return the severities that *experiment* evaluates, ascending."""
        return tuple(sorted(self.experiments[experiment].severities or self.severities))

    def cells_of(self, experiment: str) -> tuple[Cell, ...]:
        """Return the cells that *experiment* evaluates, the clean images apart."""
        severities = self.severities_of(experiment)
        return tuple(cell for cell in self.cells if cell.severity in severities)

    @property
    def experiments_by_cell(self) -> tuple[str, ...]:
        """The experiments whose streams are cells."""
        return tuple(name for name, spec in self.experiments.items() if spec.protocol.partitioned_by == "cell")

    @property
    def experiments_of_streams(self) -> tuple[str, ...]:
        """The experiments whose streams go over several cells."""
        return tuple(name for name in self.experiments if name not in self.experiments_by_cell)

    def image_size_of(self, experiment: str) -> int:
        """Return height and width, in pixels, of the images that *experiment* evaluates."""
        transform = self.experiments[experiment].shards
        return self.transforms[transform].image_size(self.image_size) if transform else self.image_size

    @property
    def has_clean(self) -> bool:
        """Whether there are uncorrupted test images."""
        return isinstance(self.source, DigitsSource) or self.source.clean is not None

    @property
    def has_train(self) -> bool:
        """Whether there are images to train a source model on."""
        return isinstance(self.source, DigitsSource)

    @property
    def has_shards(self) -> bool:
        """Whether the source is shards, which are linked to and adopted."""
        return isinstance(self.source, ShardsSource)

    def uses_clean_images(self, experiment: str) -> bool:
        """Whether the method of *experiment* looks at clean images before the stream."""
        return self.has_clean and self.experiments[experiment].entry.source_data != "unused"

    @property
    def is_generated(self) -> bool:
        """Whether the corrupted images are made here; results on them are not those of a published data set."""
        return isinstance(self.source, DigitsSource | GeneratedSource)

    @property
    def trained_model(self) -> TrainedModel | None:
        """The model that the asset `source_model` trains, if any."""
        return next((model for model in self.models.values() if isinstance(model, TrainedModel)), None)


def is_name(text: str) -> bool:
    """Return whether *text* is a `Name`."""
    return re.fullmatch(_NAME, text) is not None and "\n" not in text and len(text) <= LONGEST_NAME


def is_benchmark_name(text: str) -> bool:
    """Return whether *text* can be the name of a benchmark: a `Name` with which nothing is wrong."""
    return is_name(text) and name_problem(text) is None


def name_problem(name: str) -> str | None:
    """Return why *name*, which is a `Name`, cannot be that of a benchmark; None if it can."""
    if name.lower() in _RESERVED_NAMES:
        return f"name is {name!r}, which the data root or Dagster uses itself; expected another"
    if "__" in name:
        return f"name is {name!r}; expected none with two underscores in a row, which part names in Dagster"
    return None


def load_benchmark(path: Path) -> Benchmark:
    """Read one benchmark file, which must be right as a whole; see `loading.load_benchmarks` for what is right of many.

    Raises:
        BenchmarkFileError: the file is no YAML, or a field is missing, unknown or out of range; the message names
            every such field, its value and the choices.
    """
    return validated(path, read_document(path))


def validated(path: Path, content: dict[str, Any]) -> Benchmark:
    """Return the benchmark that *content*, of the file *path*, is.

    Raises:
        BenchmarkFileError: as `load_benchmark`.
    """
    if content.get("name", path.stem) != path.stem:
        raise BenchmarkFileError(f"{path}: name is {_shortened(content['name'])}; expected none, the file's is taken")
    try:
        return Benchmark.model_validate({**content, "name": path.stem})
    except ValidationError as error:
        raise BenchmarkFileError(f"{path}: " + f"\n{path}: ".join(_describe(error, ""))) from None


def _describe(error: ValidationError, prefix: str) -> Iterator[str]:
    for problem in error.errors():
        field = ".".join(str(part) for part in (prefix, *problem["loc"]) if part != "")
        message = re.sub(r"^Value error, |^Input should be |^String should (have|match) ", "", problem["msg"])
        if problem["type"] == "missing":
            yield f"{field} is missing"
        elif problem["type"] == "int_parsing_size":
            yield f"{field} is {_shortened(problem['input'])}; expected a whole number of fewer digits"
        elif problem.get("ctx", {}).get("pattern") == _NAME:
            yield f"{field} is {_shortened(problem['input'])}; expected letters, digits and _, a letter first"
        elif problem["type"] == "value_error":
            yield f"{field}: {message}" if field else message
        else:
            yield f"{field} is {_shortened(problem['input'])}; expected {message}"


def _shortened(value: object, limit: int = 80) -> str:
    text = repr(value)
    return text if len(text) <= limit else f"{text[: limit - 1]}…"
