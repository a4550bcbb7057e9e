"""Segments of streams, opened in the background while the segment before is evaluated."""

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import NamedTuple

from tta_pipeline.domain.streams import Segment, StreamPlan
from tta_pipeline.evaluation.experiment_results import ExperimentResults
from tta_pipeline.evaluation.open_stream import OpenStream, open_stream
from tta_pipeline.evaluation.timing import timed
from tta_pipeline.evaluation.unknown_images import add_unknown
from tta_pipeline.loading.staging import Stage
from tta_pipeline.shards.shard_set import ShardSet


class Step(NamedTuple):
    """A segment of a stream."""

    plan: StreamPlan
    segment: Segment


class _HeldStream(NamedTuple):
    """An opened stream, and the locks that keep its staged shards from being removed."""

    opened: OpenStream
    held: ExitStack


class SegmentsAhead:
    """Opens the segments of an experiment, in place or from staged copies, one ahead.

    Args:
        experiment: The experiment.
        thread: Thread that opens the next segment.
        stage: Where shards are copied to before they are read; None: they are read in place.
    """

    def __init__(self, experiment: ExperimentResults, thread: ThreadPoolExecutor, *, stage: Stage | None) -> None:
        self._experiment = experiment
        self._thread = thread
        self._stage = stage
        self._ahead: tuple[Step, Future[_HeldStream]] | None = None

    @contextmanager
    def opened(self, step: Step, *, then: Step | None) -> Iterator[OpenStream]:
        """Yield the samples of *step*, and open *then* meanwhile; its errors are raised when its turn comes.

        Raises:
            ManifestError, StreamError: see `open_stream`.
        """
        opened, held = self._take(step)
        with held:
            if then is not None:
                self._ahead = then, self._thread.submit(self._open, then)
            yield opened

    def _take(self, step: Step) -> _HeldStream:
        if self._ahead is None:
            return self._open(step)
        (expected, future), self._ahead = self._ahead, None
        if expected == step:
            return future.result()
        future.add_done_callback(_release)  # another run was first with that stream
        return self._open(step)

    def _open(self, step: Step) -> _HeldStream:
        """Open the cells of *step*; may run in another thread."""
        experiment = self._experiment
        cells, spec = step.segment.cells, experiment.spec
        folders = [experiment.folder(cell) for cell in cells]
        unknown = [folder for cell in cells if (folder := experiment.unknown_folder(cell))]
        with ExitStack() as stack:
            seed = step.segment.order_seed(step.plan.seed)
            with timed() as staging:
                if self._stage:
                    folders, unknown = (
                        [stack.enter_context(self._stage.shard_set(str(folder))).folder for folder in some]
                        for some in (folders, unknown)
                    )
            opened = open_stream(
                folders,
                belonging=[experiment.expected_shard_set(cell) for cell in cells],
                experiment=spec,
                seed=seed,
                staging_s=staging.wall_s if self._stage else 0.0,
            )
            if spec.protocol.unknown:
                belonging = map(experiment.expected_unknown, cells)
                sets = [ShardSet.open(*place) for place in zip(unknown, belonging, strict=True)]
                opened = add_unknown(opened, sets, share=spec.protocol.unknown.share, seed=seed)
            return _HeldStream(opened, stack.pop_all())


def _release(future: "Future[_HeldStream]") -> None:
    if not future.cancelled() and future.exception() is None:
        future.result().held.close()
