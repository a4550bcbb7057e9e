"""Runner of an experiment: a planner, a prefetcher, a runner of streams and a recorder that work together."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self

import torch

from tta_pipeline.domain.cells import PartitionKey
from tta_pipeline.domain.streams import StreamPlan
from tta_pipeline.evaluation.device.leases import leased_device
from tta_pipeline.evaluation.evaluator import Evaluator
from tta_pipeline.evaluation.experiment_results import ExperimentResults
from tta_pipeline.evaluation.inputs import Inputs, SharedCache
from tta_pipeline.evaluation.machine import Machine
from tta_pipeline.evaluation.planner import Planner
from tta_pipeline.evaluation.prefetch import Prefetcher
from tta_pipeline.evaluation.recorder import Recorder
from tta_pipeline.evaluation.staleness import Staleness
from tta_pipeline.evaluation.stream_runner import StreamRunner
from tta_pipeline.loading.decoded_cache import DecodedCache
from tta_pipeline.loading.remote_blocks import BlockCache
from tta_pipeline.loading.staging import Stage
from tta_pipeline.loading.stored_pixels import StoredPixels
from tta_pipeline.models.own_transforms import find_other_transforms
from tta_pipeline.results.evaluation_record import Evaluation
from tta_pipeline.results.probed_scores import Probe
from tta_pipeline.util.files import node_local_folder


class ExperimentRunner:
    """Evaluates the streams of an experiment in a process that keeps model, threads and device warm.

    Call `plan` for all keys first, then `evaluate` for each: the runner then knows the remaining work, and opens each
    segment while the previous one is evaluated.

    Args:
        experiment: The experiment to evaluate.
        machine: Settings of the machine.
        run_id: Run ID of the records.
        tell: Called with progress messages.
        keeps_predictions: Whether per-sample predictions are written.
        anew: Whether finished cells are evaluated again.
        known: Cache shared with runners of other experiments; benchmark and files must not have changed since.
        probes: What is asked of each batch besides the prediction; results have none.
    """

    def __init__(
        self,
        experiment: ExperimentResults,
        *,
        machine: Machine,
        run_id: str,
        tell: Callable[[str], None],
        keeps_predictions: bool = True,
        anew: bool = False,
        known: SharedCache | None = None,
        probes: frozenset[Probe] = frozenset(),
    ) -> None:
        self._inputs = Inputs(experiment=experiment, machine=machine, known=known or SharedCache(), probes=probes)
        self._tell = tell
        self._anew = anew
        self._stack = ExitStack()
        self._recorder = Recorder(experiment=experiment, run_id=run_id, tell=tell, keeps_predictions=keeps_predictions)
        self._planner = Planner(inputs=self._inputs, recorder=self._recorder, tell=tell)
        self._prefetcher = Prefetcher(
            experiment,
            self._stack.enter_context(ThreadPoolExecutor(1, thread_name_prefix="tta-open")),
            stage=_make_stage(machine, tell),
        )
        self._streams = StreamRunner(
            self._inputs,
            make_evaluator=self._make_evaluator,
            prefetcher=self._prefetcher,
            recorder=self._recorder,
            resumes=not anew,
            tell=tell,
        )
        self._todo: dict[PartitionKey, tuple[StreamPlan, ...]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stack.close()

    def plan(self, key: PartitionKey) -> bool:
        """Find the streams at *key* that are left to evaluate, and return whether there are any.

        Raises:
            ManifestError, EvaluationError: the shards or the model are missing, and the fingerprint needs them.
        """
        every = self._inputs.experiment.plans
        self._todo[key] = every(key) if self._anew else self._planner.find_unfinished(key)
        for plan in self._todo[key]:
            self._prefetcher.expect(plan)
        return bool(self._todo[key])

    def evaluate(self, key: PartitionKey) -> None:
        """Evaluate and record the streams at *key* that `plan` found unfinished.

        An interrupted stream continues, see `StreamRunner.run`; with *anew* it starts from the beginning.

        Raises:
            ManifestError, StreamError, EvaluationError: see `Evaluator.evaluate`.
            StoppedError: this process was asked to end; the preceding segments are recorded.
        """
        for plan in self._todo.pop(key):
            self._streams.run(plan)

    def rows(self, key: PartitionKey) -> tuple[Evaluation, ...]:
        """Return the evaluation of each cell in each stream at *key*, as `plan` found it or `evaluate` recorded it.

        Raises:
            RecordError: a cell has no current evaluation.
        """
        return tuple(map(self._recorder.row, self._inputs.experiment.places(key)))

    def staleness(self, plan: StreamPlan) -> Iterator[Staleness]:
        """Yield the standing of each cell of *plan*, in order: its newest record and its present fingerprint."""
        return self._planner.staleness(plan)

    def _leased_device(self) -> AbstractContextManager[torch.device]:
        machine = self._inputs.machine
        return leased_device(machine.device, self._tell, num_streams=machine.streams_per_device)

    def _make_evaluator(self) -> Evaluator:
        inputs, machine = self._inputs, self._inputs.machine
        for other in find_other_transforms(inputs.experiment.benchmark, [inputs.experiment.spec.model]):
            self._tell(str(other))
        cache = BlockCache(root=_stage_root(machine), limit_bytes=machine.remote_limit_bytes)
        decoded = DecodedCache(
            folder=Path(machine.decoded_folder), limit_bytes=machine.decoded_limit_bytes, cache=cache
        )
        stored = partial(StoredPixels, cache=cache)
        return Evaluator(
            experiment=inputs.experiment.resolved.experiment,
            model=inputs.model,
            image_size=inputs.image_size,
            device=self._stack.enter_context(self._leased_device()),
            num_threads=machine.num_threads,
            open_pixels=decoded.open_pixels if machine.decoded_folder else stored,
            kept_in=decoded if machine.decoded_folder else None,
            source=inputs.source,
            known_clean=inputs.known_clean,
            probes=inputs.probes,
        )


def _make_stage(machine: Machine, tell: Callable[[str], None]) -> Stage | None:
    root = _stage_root(machine)
    return Stage(root=root, limit_bytes=machine.stage_limit_bytes, tell=tell) if root else None


def _stage_root(machine: Machine) -> Path | None:
    if not machine.stage_folder:
        return None
    is_default = machine.stage_folder == "$TMPDIR"
    return node_local_folder() / "staged" if is_default else Path(machine.stage_folder).expanduser()
