"""What is evaluated: the facts that are known before the pass."""

from dataclasses import dataclass
from typing import Self

from tta_pipeline.evaluation.device.arithmetic import Precision
from tta_pipeline.evaluation.fingerprint import Fingerprint
from tta_pipeline.models.loaded_model import LoadedModel
from tta_pipeline.results.plans import Labels
from tta_pipeline.util.json_values import JsonObject


@dataclass(frozen=True, kw_only=True)
class ModelFacts:
    """The facts about a model in a record, except its name in the benchmark file."""

    architecture: str
    weights: str
    weights_sha256: str

    @classmethod
    def of(cls, model: LoadedModel) -> Self:
        """Return the facts about *model*."""
        return cls(architecture=model.architecture, weights=model.weights, weights_sha256=model.weights_sha256)


@dataclass(frozen=True, kw_only=True)
class Subject:
    """What is evaluated, known before the pass: a segment of a stream, and all that decides its predictions."""

    benchmark: str
    labels: Labels
    stream: str
    position: int = 0
    visit: int | None = None
    """Number of the visit in a recurring stream, from 1; None in other streams."""
    seed: int
    fingerprint: Fingerprint
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
    """Number of runs that could share the device, unless it is a CPU."""
