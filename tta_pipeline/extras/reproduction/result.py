"""The content of `result.json`: everything needed to cite an experiment, and to repeat it with the same data."""

import json
from collections.abc import Mapping, Sequence
from math import isclose
from pathlib import Path
from statistics import fmean, stdev
from typing import Literal, Self

from pydantic import ConfigDict, Field, JsonValue, ValidationError, model_validator

from tta_pipeline.domain.cells import CLEAN
from tta_pipeline.errors import RecordError
from tta_pipeline.util.config_model import ConfigModel
from tta_pipeline.util.short_lists import abbreviate_list
from tta_pipeline.util.validation_errors import mistakes

RESULT_FILE = "result.json"
SAMPLE_LIST = "subset"
"""Folder beside the result for the file that lists the samples of the subset, if there is one."""
PREDICTIONS = "predictions"
"""Folder beside the result for the predictions of each sample, a file for each cell, if they are published."""
Facts = dict[str, JsonValue]


class CellOutcome(ConfigModel):
    """Result of one cell in one stream."""

    partition: str
    """Key of the stream, such as `fog|5`, `5` or `all`."""
    seed: int
    position: int
    """Position of the segment in the stream, from 0."""
    corruption: str
    severity: int
    num_samples: int = Field(gt=0)
    num_correct: int = Field(ge=0)
    error: float = Field(ge=0, le=1)
    """Top-1 error in [0, 1]."""
    in_mean: bool
    """Whether the cell enters the mean error."""
    top5_error: float
    nll: float | None
    ece: float
    manifest_sha256: str
    order_hash: str
    """sha256 of the samples' keys in stream order."""
    predictions_sha256: str
    """sha256 of the predicted labels in stream order, int64 little-endian."""
    samples_sha256: str | None = None
    """sha256 of the file with the prediction of each sample; null: the folder has none."""
    record_sha256: str
    """sha256 of the result record."""
    fingerprint_parts: Facts
    """Everything that determined the predictions, by part."""

    @model_validator(mode="after")
    def _require_consistent_error(self) -> Self:
        if not _is_close(counted := 1 - self.num_correct / self.num_samples, self.error):
            raise ValueError(
                f"{self.name} has error {self.error}; expected {counted}, as {self.num_correct} of {self.num_samples} "
                "are correct"
            )
        return self

    @property
    def name(self) -> str:
        """Name of the cell in messages."""
        cell = f"{self.corruption}|{self.severity}"
        where = [*([] if self.partition == cell else [f"of stream {self.partition}, segment {self.position}"])]
        return " ".join([cell, *where, *([f"with seed {self.seed}"] if self.seed else [])])


class PublishedModel(ConfigModel):
    """The source model."""

    name: str
    architecture: str
    weights: str
    weights_sha256: str


class PublishedMethod(ConfigModel):
    """The adaptation method; its hyperparameters are in the settings."""

    name: str
    code_sha256: str | None
    hyperparameters_origin: str
    tuning: Facts | None


class Preprocessing(ConfigModel):
    """Preprocessing of an image before the network."""

    image_size: int
    mean: tuple[float, ...]
    std: tuple[float, ...]


class Errors(ConfigModel):
    """Mean errors over cells of equal weight, then over seeds."""

    mean_error: float | None
    """Mean over the cells that enter the mean of the shift set; null if there are none."""
    sd_error: float | None
    """Sample standard deviation over the seeds; null for a single seed."""
    mean_error_at_5: float | None
    clean_error: float | None


class Cost(ConfigModel):
    """Computational cost over all cells."""

    forwards_per_sample: float
    backwards_per_sample: float
    num_updates: int
    wall_s: float
    images_per_s: float
    peak_cuda_gib: float | None
    peak_rss_gib: float


class ExperimentResult(ConfigModel):
    """The content of `result.json`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    format_version: Literal[2] = 2
    benchmark: str
    title: str
    shift_set: str
    generated: bool
    """Whether this project made the images: if so, no published table is comparable."""
    experiment: str
    is_complete: bool
    missing: tuple[str, ...]
    """Partitions without a result."""
    model: PublishedModel
    method: PublishedMethod
    protocol: str
    subset: str
    subset_sha256: str | None
    seeds: tuple[int, ...]
    preprocessing: Preprocessing
    precision: str
    compile: str
    settings: Facts
    """The experiment with all hyperparameters, as in a benchmark file; a list of samples lies in the folder."""
    errors: Errors
    cost: Cost
    machine: dict[str, str]
    versions: dict[str, str]
    command: str
    """Command that evaluates the experiment in a project that has the benchmark."""
    cells: tuple[CellOutcome, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _require_consistent_errors(self) -> Self:
        counted = errors_of(self.cells).model_dump()
        for name, value in self.errors.model_dump().items():
            if not _is_close(value, counted[name]):
                raise ValueError(f"errors.{name} is {value}; expected {counted[name]}, as its cells have it")
        return self

    @property
    def sample_list(self) -> str | None:
        """Path, below the folder, of the file that lists the samples of the subset; None: there is no such file."""
        subset = self.settings.get("subset")
        listed = subset.get("listed") if isinstance(subset, dict) else None
        return None if listed is None else str(listed)

    def encoded(self) -> bytes:
        """Return the content of the file."""
        return (json.dumps(self.model_dump(mode="json"), indent=1, allow_nan=False) + "\n").encode()

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Read the result in *folder*.

        Raises:
            RecordError: the file is missing or invalid.
        """
        path = folder / RESULT_FILE
        try:
            return cls.model_validate_json(path.read_bytes())
        except OSError as error:
            inside = sorted(str(each.parent) for each in folder.glob(f"*/{RESULT_FILE}"))
            raise RecordError(
                f"{path} cannot be read ({error.strerror}); expected the folder of an experiment, which results "
                f"publish wrote{f': {abbreviate_list(inside)}' if inside else ''}"
            ) from error
        except ValidationError as error:
            raise RecordError(
                f"{path}: {'; '.join(map(str, mistakes(error, '')))}: made by an earlier version, or edited; make it "
                "again by `tta-pipeline results publish`"
            ) from error


def _is_close(one: float | None, other: float | None) -> bool:
    return one == other or (one is not None and other is not None and isclose(one, other, abs_tol=1e-9))


def errors_of(cells: Sequence[CellOutcome]) -> Errors:
    """Return the mean errors of *cells*."""
    shifted = [cell for cell in cells if cell.corruption != CLEAN.corruption and cell.in_mean]
    by_seed = [fmean(errors) for errors in _by_seed(shifted).values()]
    at_5 = [fmean(errors) for errors in _by_seed([cell for cell in shifted if cell.severity == 5]).values()]
    clean = [cell.error for cell in cells if cell.corruption == CLEAN.corruption]
    return Errors(
        mean_error=fmean(by_seed) if by_seed else None,
        sd_error=stdev(by_seed) if len(by_seed) > 1 else None,
        mean_error_at_5=fmean(at_5) if at_5 else None,
        clean_error=fmean(clean) if clean else None,
    )


def _by_seed(cells: Sequence[CellOutcome]) -> Mapping[int, Sequence[float]]:
    found: dict[int, list[float]] = {}
    for cell in cells:
        found.setdefault(cell.seed, []).append(cell.error)
    return found
