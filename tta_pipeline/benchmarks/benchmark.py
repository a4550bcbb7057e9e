"""The specification of a whole benchmark: the parts of its file, and the constraints between them."""

import re
from collections import Counter
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, PrivateAttr, ValidationInfo, field_validator, model_validator

from tta_pipeline.benchmarks.experiment_specs import Experiment, expand_protocols
from tta_pipeline.benchmarks.file_context import FileContext
from tta_pipeline.benchmarks.matrix import Matrix, as_list
from tta_pipeline.benchmarks.model_specs import AnyModel, TrainedModel
from tta_pipeline.benchmarks.shard_settings import LARGEST_IMAGE, ShardSettings
from tta_pipeline.benchmarks.tuning_settings import Tuning
from tta_pipeline.data.datasets.dataset import Dataset
from tta_pipeline.data.datasets.dataset_files import dataset_of_file
from tta_pipeline.data.images.kinds import AnyImages
from tta_pipeline.domain.cells import TRAIN, Cell, grid_of_cells
from tta_pipeline.util.config_model import ConfigModel, IfMissing, Name
from tta_pipeline.util.identifiers import BENCHMARK_NAME_PATTERN, name_problem
from tta_pipeline.util.nearest_names import name_choices


class Benchmark(ConfigModel):
    """One benchmark file."""

    _file_sha256: str = PrivateAttr("")
    _left_out: frozenset[str] = PrivateAttr(frozenset())
    name: Annotated[str, Field(pattern=BENCHMARK_NAME_PATTERN)]
    """Name of the file; for one of several datasets in the file, `<file>/<dataset>`."""
    title: str
    """Heading of tables and of the report."""
    images: AnyImages
    """Where the images come from."""
    dataset: Annotated[Dataset, IfMissing("`imagenet_c`")]
    """Dataset of the images: one that comes with the project, or a file `<name>.dataset.yaml` next to this file."""
    corruptions: Annotated[tuple[str, ...], IfMissing("those in the set's mean")]
    """Corruptions to evaluate, or the dataset's other shifts."""
    severities: Annotated[tuple[int, ...], IfMissing("all of the set")]
    """Severities to evaluate; 0 for a dataset without severities."""
    subset: bool = False
    """Set this if you have only some of the published images. Otherwise a cell with an unexpected number of images is
    an error."""
    class_map: Annotated[Literal["folders"] | Path, IfMissing("the set's list, or `folders`")] = "folders"
    """Classes in the order of their labels: `folders`, the sorted names of all class folders; a list that comes with
    the project, such as `imagenet`; a JSON file; or the devkit's `meta.mat`. Fixed at first use. Several outputs of a
    model may stand for a class, as in the list `laion_c`."""
    photograph_pattern: Annotated[str, IfMissing("keys are compared")] = ""
    """Regular expression whose first group names the photograph in the key of a sample, such as `([0-9]+)$`. Needed if
    the same photograph has different keys in different cells, since intervals and tests count photographs."""
    image_size: int = Field(ge=16, le=LARGEST_IMAGE)
    """Height and width of every image in pixels, 16 to 16,384."""
    shards: Annotated[ShardSettings | None, IfMissing("required, except if `images.kind` is `shards`")] = None
    """How shards are made."""
    train_shards: Annotated[ShardSettings | None, IfMissing("like `shards`, permuted")] = None
    """How shards of training images are made. Their images are never resized or cropped by default: training does
    that."""
    models: dict[Name, AnyModel]
    """Models by name."""
    experiments: Annotated[
        dict[Name, Experiment], BeforeValidator(expand_protocols), IfMissing("required, except with a `matrix`")
    ]
    """Experiments by name. `protocols: [reset_each_shift, mixed]` in an experiment makes two: `<name>` and
    `<name>_mixed`."""
    matrix: Annotated[tuple[Matrix, ...], BeforeValidator(as_list)] = ()
    """More experiments, one per combination of models, methods and protocols: one matrix, or a list."""
    tuning: dict[Name, Tuning] = Field(default_factory=dict)
    """Experiments whose hyperparameters are chosen on held-out shifts. An experiment with `tuned` uses them."""

    @model_validator(mode="before")
    @classmethod
    def _with_dataset(cls, value: Any, info: ValidationInfo) -> Any:
        if not isinstance(value, dict):
            return value
        dataset = dataset_of_file(value, folder=Path((info.context or {}).get("folder", ".")))
        defaults: dict[str, object] = {"corruptions": dataset.in_mean, "severities": dataset.cell_severities}
        if dataset.classes:
            defaults["class_map"] = dataset.classes
        given = {name: content for name, content in value.items() if name not in ("custom", "classes")}
        if "classes" in value:
            if "class_map" in value:
                raise ValueError(
                    "both classes and class_map are given, but they mean the same; expected only one of them: remove "
                    "the other"
                )
            given["class_map"] = value["classes"]
        return {**defaults, **given, "dataset": dataset}

    @field_validator("corruptions", "severities")
    @classmethod
    def _of_the_set(cls, found: tuple[str | int, ...], info: ValidationInfo) -> tuple[str | int, ...]:
        dataset: Dataset = info.data["dataset"]
        known = dataset.names if info.field_name == "corruptions" else dataset.cell_severities
        if unknown := [each for each in found if each not in known]:
            choices = name_choices(unknown, known, listed_in=f"the dataset {dataset.name}")
            raise ValueError(
                f"the dataset {dataset.name} does not have {', '.join(map(str, unknown))}; expected any of {choices}"
            )
        if len(set(found)) != len(found) or not found:
            raise ValueError(f"the list is {list(found)}; expected at least one entry and no duplicates")
        return found

    @field_validator("photograph_pattern")
    @classmethod
    def _has_a_group(cls, pattern: str) -> str:
        try:
            num_groups = re.compile(pattern).groups
        except re.error as error:
            raise ValueError(
                f"{pattern!r} is not a valid regular expression ({error}); expected a pattern with a group in "
                "parentheses, such as ([0-9]+)$"
            ) from error
        if pattern and not num_groups:
            raise ValueError(f"{pattern!r} has no group; expected a group in parentheses, such as ([0-9]+)$")
        return pattern

    @field_validator("models")
    @classmethod
    def _with_templates(cls, models: dict[str, AnyModel], info: ValidationInfo) -> dict[str, AnyModel]:
        templates = info.data["dataset"].templates
        return {name: model.with_templates(templates) for name, model in models.items()}

    @model_validator(mode="after")
    def _consistent(self) -> "Benchmark":
        for problem in self._problems():
            raise ValueError(problem)
        return self

    def _problems(self) -> Iterator[str]:
        file = self._context()
        yield from self._name_problems()
        yield from self.images.problems(self.cells, self.dataset)
        for name, experiment in self.experiments.items():
            yield from experiment.problems(name, file)
            if name in self.tuning:
                yield from self.tuning[name].problems(name, experiment, file)
        for name, model in self.models.items():
            yield from model.problems(name, file)
        if self.tuning and not self.held_out and not self.is_one_of_several:
            yield f"tuning is given, but {self.why_none_held_out}"
        yield from self._shard_problems()

    def _name_problems(self) -> Iterator[str]:
        if problem := name_problem(self.file):
            yield f"{problem}: rename the file"
        yield from _names_alike("models", self.models)
        yield from _names_alike("experiments", self.experiments)
        for name in self.experiments:
            if f"{name}_checks" in self.experiments:
                yield (
                    f"experiments.{name}_checks has the name that the checks of {name} have; expected another name: "
                    f"rename {name}_checks"
                )

    def _shard_problems(self) -> Iterator[str]:
        if self.shards is None and not self.images.has_shards:
            yield (
                "shards is missing; expected a section with num_shards, samples_per_shard or max_shard_bytes: add "
                "one, such as `shards: {num_shards: 4}`"
            )
        if self.shards is not None and self.images.has_shards:
            yield (
                "shards is given, but images.kind is 'shards', so the shards exist already; expected no section "
                "shards: remove it"
            )
        if self.train_shards is not None and (self.images.has_shards or not self.images.has_train):
            yield (
                "train_shards is given, but there are no training images to write as shards; expected images.train, "
                "with images.kind other than 'shards': add it, or remove train_shards"
            )

    def _context(self) -> FileContext:
        return FileContext(
            benchmark=self.name,
            images=self.images,
            severities=self.severities,
            is_evaluated_whole=self.is_one_of_several and not self.dataset.severities,
            train_shards=self.shard_settings_of(TRAIN) if self.shards else None,
            models=self.models,
            methods={name: (spec.method, spec.preset) for name, spec in self.experiments.items()},
            tunings=self.tuning,
            held_out=self.held_out,
            why_none_held_out=self.why_none_held_out,
        )

    @property
    def file_sha256(self) -> str:
        """sha256 of the bytes of the file when it was read; empty if it was not read from a file."""
        return self._file_sha256

    @property
    def left_out(self) -> frozenset[str]:
        """Names of the experiments of the file that are faulty, and so not among `experiments`."""
        return self._left_out

    def read_from(self, file_sha256: str, left_out: Collection[str] = ()) -> Self:
        """Return this benchmark, read from a file with this hash, whose experiments *left_out* are faulty."""
        self._file_sha256, self._left_out = file_sha256, frozenset(left_out)
        return self

    @property
    def file(self) -> str:
        """Name of the benchmark file, as in the column `benchmark`."""
        return self.name.partition("/")[0]

    @property
    def is_one_of_several(self) -> bool:
        """Whether the file has other datasets too."""
        return "/" in self.name

    @property
    def dagster_name(self) -> str:
        """The name in groups, jobs and sensors; Dagster allows no slash there."""
        return self.name.replace("/", "__")

    @property
    def cells(self) -> tuple[Cell, ...]:
        """Every (corruption, severity), in the order of the file."""
        return grid_of_cells(self.corruptions, self.severities)

    @property
    def held_out(self) -> tuple[str, ...]:
        """Shifts on which hyperparameters may be chosen: held out by the dataset, and not reported here."""
        return tuple(name for name in self.dataset.held_out if name not in self.corruptions)

    @property
    def held_out_cells(self) -> tuple[Cell, ...]:
        """Every held-out shift at every severity; none of them is in `grid_of_cells`."""
        return grid_of_cells(self.held_out, self.severities)

    @property
    def why_none_held_out(self) -> str:
        """If no shift is held out: why, and what the user can do."""
        if self.dataset.held_out:
            return (
                f"{self.name} reports all shifts that {self.dataset.name} holds out, "
                f"{', '.join(self.dataset.held_out)}, so none is left for tuning; expected at least one held-out shift "
                "that is not reported: remove it from corruptions"
            )
        return (
            f"the dataset {self.dataset.name} of {self.name} holds out no shifts for tuning; expected shifts in its "
            "field held_out: tune on a dataset that has some, such as imagenet_c, and copy the values to "
            "hyperparameters, or list shifts of your own dataset in held_out"
        )

    def severities_of(self, experiment_name: str) -> tuple[int, ...]:
        """Return the severities that *experiment_name* evaluates, ascending."""
        if not self.dataset.severities:
            return self.severities
        return tuple(sorted(self.experiments[experiment_name].severities or self.severities))

    def cells_of(self, experiment_name: str) -> tuple[Cell, ...]:
        """Return the cells that *experiment_name* evaluates, without the clean images."""
        severities = self.severities_of(experiment_name)
        return tuple(cell for cell in self.cells if cell.severity in severities)

    @property
    def experiments_by_cell(self) -> tuple[str, ...]:
        """Names of the experiments whose streams are single cells."""
        return tuple(name for name, spec in self.experiments.items() if spec.protocol.partitioned_by == "cell")

    @property
    def experiments_of_streams(self) -> tuple[str, ...]:
        """Names of the experiments whose streams have several cells each."""
        return tuple(name for name in self.experiments if name not in self.experiments_by_cell)

    def group_of(self, experiment_name: str) -> str:
        """Return the group of the assets of *experiment_name*; streams over several cells have their own group."""
        experiment = self.experiments[experiment_name]
        streams = "" if experiment.protocol.partitioned_by == "cell" else "_streams"
        return (f"{self.dagster_name}_{experiment.group}" if experiment.group else self.dagster_name) + streams

    def origin_of(self, experiment_name: str) -> str:
        """Return the field of the file that makes *experiment_name*: `matrix` or `experiments`."""
        made = any(each.name == experiment_name for matrix in self.matrix for each in matrix.combinations)
        return "matrix" if made else "experiments"

    @property
    def names_classes(self) -> bool:
        """Whether the file names the classes and their order, instead of taking them from the source."""
        return self.class_map != "folders"

    @property
    def has_clean(self) -> bool:
        """Whether there are uncorrupted test images."""
        return self.images.has_clean

    @property
    def has_train(self) -> bool:
        """Whether there are images to train source models on."""
        return self.images.has_train

    @property
    def is_drawn(self) -> bool:
        """Whether this project makes all images, including the clean ones."""
        return self.images.is_drawn

    def shard_settings_of(self, cell: Cell) -> ShardSettings:
        """Return how the shards of *cell* are made."""
        assert self.shards is not None, "shards that exist are not made"
        return (self.train_shards or self.shards.for_training()) if cell == TRAIN else self.shards

    @property
    def has_shards(self) -> bool:
        """Whether the source consists of existing shards, which are linked to and adopted."""
        return self.images.has_shards

    def uses_clean_images(self, experiment_name: str) -> bool:
        """Return whether the method of *experiment_name* uses clean images before the stream."""
        return self.has_clean and self.experiments[experiment_name].entry.source_data != "unused"

    def num_published(self, cell: Cell) -> int | None:
        """Return how many published images *cell* must have; None: any number is right."""
        is_published = not self.subset and not self.is_generated and cell.corruption in self.dataset.names
        return self.dataset.images_per_cell if is_published else None

    @property
    def is_generated(self) -> bool:
        """Whether this project makes the corrupted images; results are not comparable to a published dataset."""
        return self.images.is_generated

    @property
    def trained_models(self) -> dict[str, TrainedModel]:
        """Models that assets `source_model` train, by name."""
        return {name: training for name, model in self.models.items() if (training := model.training)}

    def source_model_asset(self, model: str) -> str:
        """Return the key, below the benchmark's, of the asset that trains *model*: with its name if there are more."""
        return f"source_model/{model}" if len(self.trained_models) > 1 else "source_model"


def _names_alike(field: str, names: Collection[str]) -> Iterator[str]:
    """Yield a sentence if *names* of the section *field* would be the same name on some file systems."""
    counts = Counter(name.lower() for name in names)
    if alike := [name for name in names if counts[name.lower()] > 1]:
        yield (
            f"{field}: the names {', '.join(alike)} differ only in case; expected names that differ on any file "
            "system: rename all but one"
        )
