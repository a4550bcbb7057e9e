"""Finds the unfinished streams of an experiment: those without a result, or with outdated code, data or settings."""

from collections.abc import Iterator, Sequence
from functools import cached_property

from tta_pipeline.domain.cells import PartitionKey
from tta_pipeline.errors import ManifestError
from tta_pipeline.evaluation.experiment_results import ExperimentResults
from tta_pipeline.evaluation.inputs import Inputs, SharedCache
from tta_pipeline.evaluation.machine import Machine
from tta_pipeline.evaluation.run_experiment import Board, update_plan


class FingerprintComparison:
    """Compares the results of a benchmark's experiments with their current fingerprints, and writes their plans.

    A manifest is read once. A model is loaded once for consecutive experiments with the same model.

    Args:
        device: Device that will evaluate, in the notation of `Machine`; it is part of the fingerprint.
    """

    def __init__(self, *, device: str) -> None:
        self._device = device

    def unfinished_keys(self, results: ExperimentResults, keys: Sequence[PartitionKey]) -> Iterator[PartitionKey]:
        """Yield the *keys* with an unfinished stream; only the plan is written.

        Raises:
            EvaluationError: the model cannot be loaded; its weights are part of the fingerprint.
        """
        inputs = Inputs(experiment=results, machine=Machine(device=self._device), known=self._cache)
        update_plan(inputs)
        board = Board(inputs=inputs)
        yield from (key for key in keys if not _is_finished(board, key))

    @cached_property
    def _cache(self) -> SharedCache:
        return SharedCache()


def _is_finished(board: Board, key: PartitionKey) -> bool:
    try:
        return not board.find_unfinished(key)
    except ManifestError:
        return False
