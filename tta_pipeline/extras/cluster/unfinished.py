"""Finds the unfinished streams of an experiment: without a record, or with records of other data or settings."""

from collections.abc import Iterator
from functools import cached_property

from tta_pipeline.domain.cells import PartitionKey
from tta_pipeline.errors import ManifestError
from tta_pipeline.evaluation.experiment_results import ExperimentResults
from tta_pipeline.evaluation.inputs import SharedCache
from tta_pipeline.evaluation.machine import Machine
from tta_pipeline.evaluation.runner import ExperimentRunner


class FingerprintComparison:
    """Compares the newest records of a benchmark's experiments with their present fingerprints.

    A manifest is read once. A model is loaded once for consecutive experiments with the same model.

    Args:
        device: Device that will evaluate, in the notation of `Machine`; it is part of the fingerprint.
    """

    def __init__(self, *, device: str) -> None:
        self._device = device

    def unfinished_keys(self, results: ExperimentResults) -> Iterator[PartitionKey]:
        """Yield the keys at which a stream is unfinished; nothing is written.

        Raises:
            EvaluationError: the model cannot be loaded; its weights are part of the fingerprint.
        """
        recorded = results.recorded_keys()
        if not recorded:
            yield from results.keys
            return
        machine = Machine(device=self._device)
        with ExperimentRunner(results, machine=machine, run_id="", tell=lambda _: None, known=self._cache) as runner:
            yield from (key for key in results.keys if key not in recorded or not _is_finished(runner, results, key))

    @cached_property
    def _cache(self) -> SharedCache:
        return SharedCache()


def _is_finished(runner: ExperimentRunner, results: ExperimentResults, key: PartitionKey) -> bool:
    try:
        return all(standing.is_finished for plan in results.plans(key) for standing in runner.staleness(plan))
    except ManifestError:
        return False
