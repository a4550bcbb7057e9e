"""The training of one model of a benchmark, as it lies on disk: finished or not. Asking takes no torchvision."""

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tta_pipeline.benchmarks.benchmark import Benchmark
from tta_pipeline.benchmarks.model_specs import TrainedModel
from tta_pipeline.domain.cells import TRAIN, Cell
from tta_pipeline.domain.locations import Locations
from tta_pipeline.errors import EvaluationError, RecordError
from tta_pipeline.models.trained_models import SourceModelFacts, read_source_model_facts, training_fingerprint
from tta_pipeline.results.names import find_results
from tta_pipeline.results.result_files import read_result
from tta_pipeline.shards.benchmark_expectation import expected_for_benchmark
from tta_pipeline.shards.shard_set import ShardSet

TRAININGS = "trainings"
"""Folder of the trainings among a benchmark's results."""


@dataclass(frozen=True, kw_only=True)
class TrainingOnDisk:
    """The training of one model of a benchmark, and the locations of its files."""

    benchmark: Benchmark
    model: str
    locations: Locations

    @property
    def settings(self) -> TrainedModel:
        """Settings of the training in the benchmark file."""
        return self.benchmark.trained_models[self.model]

    @property
    def path(self) -> Path:
        """File of the weights to evaluate."""
        return self.locations.source_model(self.benchmark.name, self.model)

    @property
    def folder(self) -> Path:
        """Folder of the checkpoints, and of the last and the best weights."""
        return self.locations.training(self.benchmark.name, self.model)

    def shard_set(self, cell: Cell) -> ShardSet:
        """Return the verified shard set of *cell*, the training or the clean images.

        Raises:
            ManifestError: the shards are missing, or differ from the manifest.
        """
        belonging = expected_for_benchmark(self.benchmark, self.locations, cell)
        shard_set = ShardSet.open(self.locations.shards(self.benchmark.name, cell), belonging)
        shard_set.require_intact()
        return shard_set

    def find_finished(self) -> SourceModelFacts | None:
        """Return the facts of the model if it was trained on the present shards with the present settings, else None.

        Raises:
            ManifestError: the training shards are missing, or differ from their manifest.
        """
        return self._find_finished(self.shard_set(TRAIN))

    def is_recorded(self, facts: SourceModelFacts) -> bool:
        """Return whether there is a result of this training that describes the weights of *facts*."""
        for path in find_results(self.locations.results(self.benchmark.name) / TRAININGS, facts.fingerprint):
            with suppress(RecordError):  # damaged; it is set aside when results are published
                found = read_result(path).result.training
                if found and found.weights_sha256 == facts.weights_sha256 and found.model == self.model:
                    return True
        return False

    def _find_finished(self, shard_set: ShardSet) -> SourceModelFacts | None:
        facts = read_source_model_facts(self.path)
        return facts if facts and facts.fingerprint == self.fingerprint(shard_set) else None

    def require_finished(self) -> SourceModelFacts:
        """Return the facts of the model, which must be trained on the present shards with the present settings."""
        found = self.find_finished()
        if found is None:
            raise EvaluationError(f"{self.path} is missing or of another training; expected a finished training")
        return found

    def fingerprint(self, shard_set: ShardSet) -> str:
        """Return the hash of everything that determines the weights, if *shard_set* has the training images."""
        return training_fingerprint(self.settings, shard_set.manifest, image_size=self.benchmark.image_size)
