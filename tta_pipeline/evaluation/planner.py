"""What is left to evaluate of an experiment: the newest record of each cell beside its present fingerprint."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tta_pipeline.benchmarks.places import Place
from tta_pipeline.domain.cells import PartitionKey
from tta_pipeline.domain.streams import StreamPlan
from tta_pipeline.errors import RecordError
from tta_pipeline.evaluation.fingerprint import Fingerprint
from tta_pipeline.evaluation.inputs import Inputs
from tta_pipeline.evaluation.recorder import Recorder
from tta_pipeline.evaluation.staleness import Staleness


@dataclass(frozen=True, kw_only=True)
class Planner:
    """Compares records with fingerprints."""

    inputs: Inputs
    recorder: Recorder
    tell: Callable[[str], None]

    def staleness(self, plan: StreamPlan) -> Iterator[Staleness]:
        """Yield the standing of each cell of *plan*, in order: its newest record and its present fingerprint.

        Raises:
            ManifestError, EvaluationError: see `Inputs.fingerprints`.
        """
        earlier: Staleness | None = None
        for segment, present in zip(plan.segments, self.inputs.fingerprints(plan), strict=True):
            found = [self._cell_staleness(Place(plan, segment, cell), present, earlier) for cell in segment.cells]
            yield from found
            earlier = earlier or next((each for each in found if _has_other_shards(each)), None)

    def find_unfinished(self, key: PartitionKey) -> tuple[StreamPlan, ...]:
        """Return the streams at *key* whose newest records do not have the present fingerprints, and tell why.

        Finished records are brought up to date first.

        Raises:
            ManifestError, EvaluationError: see `Inputs.fingerprints`.
        """
        return tuple(plan for plan in self.inputs.experiment.plans(key) if not self._is_finished(plan))

    def _is_finished(self, plan: StreamPlan) -> bool:
        standings = [self.recorder.bring_up_to_date(standing) for standing in self.staleness(plan)]
        left = [standing for standing in standings if not standing.is_finished]
        if left and (left[0].problem or left[0].stored):
            self.tell(f"{left[0].place.text} is evaluated again: {left[0].reason}")
        return not left

    def _cell_staleness(self, place: Place, present: Fingerprint, earlier: Staleness | None) -> Staleness:
        try:
            record = self.inputs.experiment.valid_record(place, fingerprint=present.sha256)
        except RecordError as error:
            return Staleness(place=place, present=present, record=None, problem=str(error))
        return Staleness(place=place, present=present, record=record, earlier=earlier)


def _has_other_shards(standing: Staleness) -> bool:
    return not standing.is_finished and "data" in standing.differences
