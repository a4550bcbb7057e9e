"""What is evaluated, as far as it is known before the pass."""

from dataclasses import dataclass
from typing import Self, TypedDict

from tta_pipeline.data.shifts.shift_set import ShiftSet
from tta_pipeline.evaluation.device.arithmetic import Precision
from tta_pipeline.evaluation.experiment_results import ExperimentResults
from tta_pipeline.evaluation.fingerprint import Fingerprint
from tta_pipeline.models.loaded_model import LoadedModel
from tta_pipeline.util.json_values import JsonObject

_NO_SET = "own"
"""Shift set in the record of shards that no benchmark file names."""


class StatedColumns(TypedDict):
    """What files state, named as the columns of an evaluation."""

    experiment: str
    model: str
    shift_set: str
    shift_position: int | None
    shift_family: str | None
    shift_group: str | None
    in_mean: bool | None
    hyperparameters_origin: str
    tuning: str | None


@dataclass(frozen=True, kw_only=True)
class StatedFacts:
    """Facts in a record that the present files state and that change no prediction.

    When they change, a finished result is recorded again with the new ones.
    """

    experiment: str
    model: str
    """Name of the model in the benchmark file."""
    origin: str
    """Origin of the hyperparameters."""
    tuning: str | None = None
    shift_set: ShiftSet | None = None
    """Set of the shift; None if a manifest alone names it."""

    @classmethod
    def of(cls, experiment: ExperimentResults) -> Self:
        """Return what the files state of *experiment*.

        Raises:
            EvaluationError, RecordError: see `resolve_experiment`.
        """
        return cls(
            experiment=experiment.experiment_name,
            model=experiment.spec.model,
            origin=experiment.resolved.origin,
            tuning=experiment.resolved.tuning,
            shift_set=experiment.benchmark.shift_set,
        )

    def of_shift(self, shift: str) -> StatedColumns:
        """Return the columns of a record of *shift*."""
        found = self.shift_set.facts_of(shift) if self.shift_set else None
        return {
            "experiment": self.experiment,
            "model": self.model,
            "shift_set": found.shift_set if found else _NO_SET,
            "shift_position": found.shift_position if found else None,
            "shift_family": found.shift_family if found else None,
            "shift_group": found.shift_group if found else None,
            "in_mean": found.in_mean if found else None,
            "hyperparameters_origin": self.origin,
            "tuning": self.tuning,
        }


@dataclass(frozen=True, kw_only=True)
class ModelFacts:
    """The facts about a model in a record, except its name in the benchmark file."""

    architecture: str
    weights: str
    weights_sha256: str
    mean: tuple[float, ...]
    std: tuple[float, ...]

    @classmethod
    def of(cls, model: LoadedModel) -> Self:
        """Return the facts about *model*."""
        return cls(
            architecture=model.architecture, weights=model.weights, weights_sha256=model.weights_sha256,
            mean=model.mean, std=model.std,
        )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Subject:
    """What is evaluated, known before the pass: a segment of a stream, and all that decides its predictions."""

    benchmark: str
    stated: StatedFacts
    stream: str
    position: int = 0
    visit: int | None = None
    """Number of the visit in a recurring stream, from 1; None in other streams."""
    seed: int
    fingerprint: Fingerprint
    code_sha256: str | None
    """sha256 of the method's source; None if it has no file."""
    model: ModelFacts
    method: str
    protocol: str
    subset: str
    settings: JsonObject
    """The experiment as it is recorded, with all hyperparameters."""
    batch_size: int
    precision: Precision
    compile: str = "off"
    num_threads: int
    """Number of decoding threads."""
    streams_per_device: int = 1
    """Number of runs that could share the device, if it is no CPU."""
