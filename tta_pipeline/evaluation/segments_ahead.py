"""Open segments of streams in the background while the previous segment is evaluated."""

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import NamedTuple

from tta_pipeline.domain.streams import Segment, StreamPlan
from tta_pipeline.evaluation.experiment_results import ExperimentResults
from tta_pipeline.evaluation.open_stream import OpenStream, open_stream
from tta_pipeline.evaluation.unknown_images import add_unknown
from tta_pipeline.shards.shard_set import ShardSet


class Step(NamedTuple):
    """A segment of a stream."""

    plan: StreamPlan
    segment: Segment


class SegmentsAhead:
    """Opens the segments of an experiment, one ahead, in another thread."""

    def __init__(self, experiment: ExperimentResults, thread: ThreadPoolExecutor) -> None:
        self._experiment = experiment
        self._thread = thread
        self._ahead: tuple[Step, Future[OpenStream]] | None = None

    @contextmanager
    def opened(self, step: Step, *, then: Step | None) -> Iterator[OpenStream]:
        """Yield the samples of *step*, and open *then* meanwhile; its errors are raised when its turn comes.

        Raises:
            ManifestError, StreamError: see `open_stream`.
        """
        opened = self._take(step)
        if then is not None:
            self._ahead = then, self._thread.submit(self._open, then)
        yield opened

    def _take(self, step: Step) -> OpenStream:
        if self._ahead is not None:
            (expected, future), self._ahead = self._ahead, None
            if expected == step:
                return future.result()
        return self._open(step)  # it was not opened ahead, or another run evaluated the planned one first

    def _open(self, step: Step) -> OpenStream:
        """Open the cells of *step*; may run in another thread."""
        experiment = self._experiment
        cells, spec = step.segment.cells, experiment.spec
        seed = step.segment.order_seed(step.plan.seed)
        opened = open_stream(
            [experiment.folder(cell) for cell in cells],
            belonging=[experiment.expected_shard_set(cell) for cell in cells],
            experiment=spec,
            seed=seed,
        )
        if spec.protocol.unknown:
            unknown = [folder for cell in cells if (folder := experiment.unknown_folder(cell))]
            belonging = map(experiment.expected_unknown, cells)
            sets = [ShardSet.open(*place) for place in zip(unknown, belonging, strict=True)]
            opened = add_unknown(opened, sets, share=spec.protocol.unknown.share, seed=seed)
        return opened
