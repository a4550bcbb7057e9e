"""Evaluate the unfinished streams of one experiment, and return the results at each key."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Protocol

from tta_pipeline.domain.cells import PartitionKey
from tta_pipeline.domain.streams import StreamPlan
from tta_pipeline.errors import PipelineError
from tta_pipeline.evaluation.device.leases import leased_device
from tta_pipeline.evaluation.evaluator import Evaluator
from tta_pipeline.evaluation.experiment_results import ExperimentResults, chosen_results
from tta_pipeline.evaluation.fingerprint import Fingerprint, own_method_files
from tta_pipeline.evaluation.inputs import Inputs, SharedCache
from tta_pipeline.evaluation.machine import Machine
from tta_pipeline.evaluation.run_stream import Workshop, run_stream
from tta_pipeline.evaluation.segments_ahead import SegmentsAhead
from tta_pipeline.evaluation.standing import Standing, standings
from tta_pipeline.loading.copied_shards import ShardCache
from tta_pipeline.loading.decoded_cache import DecodedCache
from tta_pipeline.loading.stored_pixels import StoredPixels
from tta_pipeline.models.own_transforms import find_other_transforms
from tta_pipeline.results.evaluation_record import Evaluation
from tta_pipeline.results.plans import Plan, PlannedSegment, PlannedStream, drop_other_plans, write_plan
from tta_pipeline.results.result_files import StoredResult
from tta_pipeline.results.tuning_criteria import Probe
from tta_pipeline.util.locks import locked

Rows = tuple[Evaluation, ...]
Report = Callable[[Rows, bool], None]
"""Receives the evaluations at a key, and whether any of them is new."""


class Listener(Protocol):
    """What a caller does around each key."""

    def planning(self, key: PartitionKey) -> AbstractContextManager[object]:
        """Return the context in which the unfinished streams at *key* are found."""

    def evaluating(self, key: PartitionKey) -> AbstractContextManager[Report]:
        """Return the context in which *key* is evaluated, with a function that receives its results."""


class _Quiet:
    """Does nothing, and lets errors pass."""

    def planning(self, key: PartitionKey) -> AbstractContextManager[object]:  # noqa: ARG002 - as in `Listener`
        return nullcontext()

    def evaluating(self, key: PartitionKey) -> AbstractContextManager[Report]:  # noqa: ARG002
        return nullcontext(lambda _rows, _was_evaluated: None)


def run_experiment(
    experiment: ExperimentResults,
    keys: Sequence[PartitionKey],
    *,
    machine: Machine,
    run_id: str,
    tell: Callable[[str], None],
    keeps_predictions: bool = True,
    force: bool = False,
    known: SharedCache | None = None,
    probes: frozenset[Probe] = frozenset(),
    listener: Listener = _Quiet(),  # noqa: B008 - it has no state
) -> Mapping[PartitionKey, Rows]:
    """Evaluate the unfinished streams of *experiment* at *keys*, and return the evaluations at each key.

    First the current plan of the experiment is written. Streams with results for this plan are finished.

    Args:
        experiment: The experiment.
        keys: Partition keys of its streams.
        machine: Settings of the machine.
        run_id: Run that the results name.
        tell: Called with progress messages.
        keeps_predictions: Whether the prediction for each sample is kept; a result without it is then unfinished.
        force: Whether finished streams are evaluated again, in a whole new pass, for another timing.
        known: Models and manifests shared with other experiments; benchmark and files must not have changed since.
        probes: What is computed for each batch in addition to the prediction; only for trials.
        listener: Called around each key.

    Raises:
        PipelineError: an input is missing or damaged, and *listener* lets the error pass.
    """
    inputs = Inputs(experiment=experiment, machine=machine, known=known or SharedCache(), probes=probes)
    board = Board(inputs=inputs, keeps_predictions=keeps_predictions, tell=tell)
    with _open_workshop(inputs, run_id=run_id, keeps_predictions=keeps_predictions, tell=tell) as shop:
        left: dict[PartitionKey, tuple[StreamPlan, ...]] = {}
        for key in keys:
            with listener.planning(key):
                left[key] = experiment.plans(key) if force else board.find_unfinished(key)
        update_plan(inputs)
        rows: dict[PartitionKey, Rows] = {}
        for key, then in _in_turn(inputs, left):
            with listener.evaluating(key) as report:
                made = [
                    stored for plan in left[key] for stored in _run_or_wait(shop, board, plan, force=force, then=then)
                ]
                rows[key] = board.rows(key, made)
                report(rows[key], bool(left[key]))
        update_plan(inputs)
    return rows


@dataclass(frozen=True, kw_only=True)
class Board:
    """The finished streams of an experiment, by the current fingerprints."""

    inputs: Inputs
    keeps_predictions: bool = False
    """Whether a result without intact predictions is unfinished."""
    tell: Callable[[str], None] = lambda _: None
    _told: set[str] = field(default_factory=set, init=False, repr=False)
    _chains: dict[StreamPlan, tuple[StoredResult, ...]] = field(default_factory=dict, init=False, repr=False)

    def find_unfinished(self, key: PartitionKey) -> tuple[StreamPlan, ...]:
        """Return the streams at *key* that are not finished, and report why.

        Raises:
            ManifestError, EvaluationError: see `Inputs.fingerprints`.
        """
        return tuple(plan for plan in self.inputs.experiment.plans(key) if not self.is_finished(plan))

    def is_finished(self, plan: StreamPlan) -> bool:
        """Return whether each segment of *plan* has a result of one pass with its current fingerprint; report why not.

        Raises:
            ManifestError, EvaluationError: see `Inputs.fingerprints`.
        """
        if self.find_chain(plan):
            return True
        first = next(each for each in self.standings(plan) if not each.is_finished)
        if (first.problem or self._was_ours(first)) and first.reason not in self._told:
            self._told.add(first.reason)
            self.tell(f"{first.name} is evaluated again: {first.reason} (said once for all streams with this reason)")
        return False

    def _was_ours(self, standing: Standing) -> bool:
        """Return whether the result in *standing* was made by this experiment, or is in its plan."""
        if standing.row is None or standing.row.cell.seed != standing.plan.seed:
            return False  # a new seed is evaluated for the first time
        asked = self.inputs.experiment.planned_stream(standing.plan)
        is_asked = asked is not None and standing.row.setup.fingerprint in asked.fingerprints
        return is_asked or standing.row.labels.experiment == self.inputs.experiment.experiment_name

    def find_chain(self, plan: StreamPlan) -> tuple[StoredResult, ...]:
        """Return the results of *plan* by its current fingerprints, all of one pass; empty if one is missing."""
        fingerprints = self.inputs.stream_fingerprints(plan)
        chain, _ = self._read(plan, fingerprints)
        if len(chain) < len(fingerprints):
            return ()
        self._chains[plan] = chain
        return chain

    def standings(self, plan: StreamPlan) -> Iterator[Standing]:
        """Yield the `Standing` of each segment of *plan*, in order.

        Raises:
            ManifestError, EvaluationError: see `Inputs.fingerprints`.
        """
        fingerprints = self.inputs.stream_fingerprints(plan)
        chain, problems = self._read(plan, fingerprints)
        return standings(self.inputs.experiment, plan, fingerprints, chain, problems)

    def rows(self, key: PartitionKey, made: Sequence[StoredResult]) -> Rows:
        """Return the evaluations at *key*: the ones *made* now, and the earlier ones of finished streams."""
        found = {each.sha256: each for each in made}
        finished = [self._chains[plan] for plan in self.inputs.experiment.plans(key) if plan in self._chains]
        every = [*(stored for chain in finished for stored in chain), *found.values()]
        rows = [row for stored in every for row in stored.result.evaluations]
        order = {plan.seed: number for number, plan in enumerate(self.inputs.experiment.plans(key))}
        rows.sort(key=lambda row: (order[row.cell.seed], row.cell.position))
        return tuple(map(self.inputs.experiment.relabelled, rows))

    def _read(
        self, plan: StreamPlan, fingerprints: Sequence[Fingerprint]
    ) -> tuple[tuple[StoredResult, ...], list[str]]:
        problems: list[str] = []
        names = [each.sha256 for each in fingerprints]
        found = self.inputs.experiment.find(
            plan.key, names, with_predictions=self.keeps_predictions, tell=problems.append
        )
        return chosen_results(names, found), problems


def update_plan(inputs: Inputs) -> None:
    """Write the current plan of the experiment if it has changed; remove plans of names not in the benchmark file.

    Streams whose shards or model are missing are in the plan without fingerprints.
    """
    experiment = inputs.experiment
    if experiment.is_trial:
        return
    with suppress(PipelineError):  # not tuned yet: there is nothing to plan
        plan = Plan(
            benchmark=experiment.benchmark.name,
            file_sha256=experiment.benchmark.file_sha256,
            labels=experiment.labels,
            streams=tuple(_planned(inputs, stream) for key in experiment.keys for stream in experiment.plans(key)),
            own_files=_own_files(experiment),
        )
        write_plan(experiment.locations, plan)
        benchmark = experiment.benchmark
        names = tuple(benchmark.experiments)
        drop_other_plans(experiment.locations, benchmark.name, names, unreadable=benchmark.left_out)


def _own_files(experiment: ExperimentResults) -> Mapping[str, str]:
    try:
        files = own_method_files(experiment.spec)
    except ValueError:  # reported when the fingerprint is made
        return {}
    return {os.path.relpath(path, experiment.locations.root): sha256 for path, sha256 in files.items()}


def _planned(inputs: Inputs, plan: StreamPlan) -> PlannedStream:
    fingerprints: list[str] = []
    with suppress(PipelineError):
        fingerprints.extend(each.sha256 for each in inputs.fingerprints(plan))
    known = [*fingerprints, *[None] * (len(plan.segments) - len(fingerprints))]
    segments = [
        PlannedSegment(fingerprint=fingerprint, cells=tuple(cell.key for cell in segment.cells))
        for fingerprint, segment in zip(known, plan.segments, strict=True)
    ]
    return PlannedStream(key=plan.key.key, seed=plan.seed, segments=tuple(segments))


def _in_turn(
    inputs: Inputs, left: Mapping[PartitionKey, Sequence[StreamPlan]]
) -> Iterator[tuple[PartitionKey, StreamPlan | None]]:
    """Yield each key with the stream that follows it; keys that another run has begun come last."""
    waiting = list(left)
    while waiting:
        free = (key for key in waiting if not any(_is_claimed(inputs, plan) for plan in left[key]))
        key = next(free, waiting[0])
        waiting.remove(key)
        yield key, next((plan for other in waiting for plan in left[other]), None)


def _run_or_wait(
    shop: Workshop, board: Board, plan: StreamPlan, *, force: bool, then: StreamPlan | None
) -> Sequence[StoredResult]:
    """Evaluate *plan*; if another run is evaluating it, wait for that run and use its results."""
    path = _claim_path(shop.inputs, plan)
    with ExitStack() as stack:
        if not stack.enter_context(locked(path, waits=False, is_kept=False)):
            shop.tell(f"stream {plan.key.key} is being evaluated by another run; this one waits for it")
            stack.enter_context(locked(path, is_kept=False))
        if not force and board.find_chain(plan):
            shop.tell(f"stream {plan.key.key} was evaluated by another run meanwhile")
            return ()
        return run_stream(shop, plan, resumes=not force, then=then)


def _is_claimed(inputs: Inputs, plan: StreamPlan) -> bool:
    path = _claim_path(inputs, plan)
    if not path.exists():
        return False
    with locked(path, waits=False, is_kept=False) as is_ours:
        return not is_ours


def _claim_path(inputs: Inputs, plan: StreamPlan) -> Path:
    """Return the file that a run locks while it evaluates *plan*, only to save work: two results do no harm."""
    first = next(inputs.fingerprints(plan)).sha256
    folder = inputs.experiment.states_folder(plan, first)
    return folder.with_name(f"{folder.name}.lock")


@contextmanager
def _open_workshop(
    inputs: Inputs, *, run_id: str, keeps_predictions: bool, tell: Callable[[str], None]
) -> Iterator[Workshop]:
    """Yield what the streams of an experiment share; the device is leased when the first stream needs it."""
    with ExitStack() as stack:
        thread = stack.enter_context(ThreadPoolExecutor(1, thread_name_prefix="tta-open"))
        yield Workshop(
            inputs=inputs,
            segments=SegmentsAhead(inputs.experiment, thread),
            evaluator=cache(partial(_make_evaluator, inputs, stack, tell)),
            run_id=run_id,
            keeps_predictions=keeps_predictions,
            tell=tell,
        )


def _make_evaluator(inputs: Inputs, stack: ExitStack, tell: Callable[[str], None]) -> Evaluator:
    machine, experiment = inputs.machine, inputs.experiment
    for other in find_other_transforms(experiment.benchmark, [experiment.spec.model]):
        tell(str(other))
    copies = ShardCache(root=machine.local_scratch, limit_bytes=machine.local_scratch_limit_bytes)
    kept = None
    if machine.cache:
        kept = DecodedCache(folder=machine.cache, limit_bytes=machine.cache_limit_bytes, cache=copies)
    return Evaluator(
        experiment=experiment.resolved.experiment,
        model=inputs.model,
        image_size=inputs.image_size,
        device=stack.enter_context(leased_device(machine.device, tell, num_streams=machine.streams_per_device)),
        num_threads=machine.num_threads,
        open_pixels=kept.open_pixels if kept else partial(StoredPixels, cache=copies),
        kept_in=kept,
        source=inputs.source,
        known_clean=inputs.known_clean,
        probes=inputs.probes,
    )
