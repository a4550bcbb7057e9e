"""Evaluate one stream, segment by segment, from where it was interrupted; each segment becomes a result file."""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from tta_pipeline.benchmarks.experiment_specs import Experiment
from tta_pipeline.domain.streams import Segment, StreamPlan
from tta_pipeline.evaluation.build_records import build_records
from tta_pipeline.evaluation.evaluate_segment import Checkpoint
from tta_pipeline.evaluation.evaluator import Evaluator
from tta_pipeline.evaluation.experiment_results import link_of
from tta_pipeline.evaluation.fingerprint import Fingerprint
from tta_pipeline.evaluation.inputs import Inputs
from tta_pipeline.evaluation.measured_pass import MeasuredPass, Measurement
from tta_pipeline.evaluation.sample_predictions import SamplePredictions, encode_predictions
from tta_pipeline.evaluation.segments_ahead import SegmentsAhead, Step
from tta_pipeline.evaluation.stream_states import NUM_KEPT, StreamStates
from tta_pipeline.evaluation.subject import ModelFacts, Subject
from tta_pipeline.methods.stateful import StateDict
from tta_pipeline.results.chains import ends_of_chains
from tta_pipeline.results.evaluation_record import Evaluation
from tta_pipeline.results.result_files import Result, StoredResult, predictions_path, store_result, utc_now
from tta_pipeline.util.files import write_atomically
from tta_pipeline.util.json_values import JsonObject
from tta_pipeline.util.plurals import count_of
from tta_pipeline.util.progress import Progress
from tta_pipeline.util.software_versions import software_versions


@dataclass(frozen=True, kw_only=True)
class Workshop:
    """What the streams of an experiment share in a process: the model, a device, threads, and where results go."""

    inputs: Inputs
    segments: SegmentsAhead
    evaluator: Callable[[], Evaluator]
    """Returns the evaluator; the first call leases a device and makes the network."""
    run_id: str
    keeps_predictions: bool
    tell: Callable[[str], None]


def run_stream(
    shop: Workshop, plan: StreamPlan, *, resumes: bool = True, then: StreamPlan | None = None
) -> tuple[StoredResult, ...]:
    """Evaluate the remaining segments of *plan*, and return the results of all segments.

    An interrupted stream continues from its newest state: the last state inside the interrupted segment, or the state
    after the last finished segment. Each result contains the hash of the previous one, so segments of different passes
    are never combined.

    Args:
        shop: What streams share.
        plan: The stream.
        resumes: Whether an interrupted stream continues; otherwise a whole new pass begins.
        then: The stream that will be evaluated next; its first segment is opened ahead.

    Raises:
        ManifestError, StreamError, EvaluationError: see `evaluate_segment`.
        RecordError: a result cannot be written.
    """
    inputs, evaluator = shop.inputs, shop.evaluator()
    evaluator.start(inputs.manifest(plan.segments[0].cells[0]), seed=plan.seed)
    start = _find_start(shop, plan) if resumes else _Start()
    if start.state is not None:
        evaluator.load_state_dict(start.state)
        shop.tell(start.message(plan))
    chain, done = list(start.chain), start.done
    fingerprints = inputs.fingerprints(plan)
    first = next(inputs.fingerprints(plan)).sha256
    states = StreamStates(folder=inputs.experiment.states_folder(plan, first))
    for _ in islice(fingerprints, len(chain)):
        pass
    for segment, following in _with_following(plan, then, len(chain)):
        stored = _run_segment(
            shop,
            Step(plan, segment),
            following=following,
            fingerprints=fingerprints,
            chain=chain,
            done=done,
            states=states,
        )
        chain.append(stored)
        done = ()
    states.keep_only([])
    return tuple(chain)


@dataclass(frozen=True, kw_only=True)
class _Start:
    """The point from which a stream continues."""

    chain: tuple[StoredResult, ...] = ()
    """The results of the segments before it."""
    state: StateDict | None = None
    """State of the method; None if the stream begins with the source model."""
    done: tuple[MeasuredPass, ...] = ()
    """Finished parts of the next segment."""

    def message(self, plan: StreamPlan) -> str:
        num_images = sum(len(part.collected.samples.indices) for part in self.done)
        after = f" after {count_of(num_images, 'image')}" if num_images else ""
        return f"stream {plan.key.key} continues at position {len(self.chain)} of {len(plan.segments)}{after}"


def _find_start(shop: Workshop, plan: StreamPlan) -> _Start:
    """Return the newest state of a pass without missing results; of several passes, the one with the most segments."""
    inputs = shop.inputs
    fingerprints = [each.sha256 for each in inputs.fingerprints(plan)]
    found = inputs.experiment.find(plan.key, fingerprints, with_predictions=shop.keeps_predictions, tell=shop.tell)
    by_hash = {stored.sha256: stored for several in found.values() for stored in several}
    links = {fingerprint: [link_of(each) for each in several] for fingerprint, several in found.items()}
    ends = [(None,), *([link.sha256 for link in each] for each in ends_of_chains(fingerprints, links))]
    states = StreamStates(folder=inputs.experiment.states_folder(plan, fingerprints[0]))
    for number in range(len(ends) - 1, -1, -1):
        for end in ends[number] if number < len(fingerprints) else ():
            chain = _chain_to(end, by_hash)
            if within := states.read_newest_within(fingerprints[number], end, shop.tell):
                state, done = within
                return _Start(chain=chain, state=state, done=tuple(done))
            if end is not None and (state_after := states.read(end, shop.tell)) is not None:
                return _Start(chain=chain, state=state_after)
    return _Start()


def _chain_to(end: str | None, by_hash: dict[str, StoredResult]) -> tuple[StoredResult, ...]:
    chain: list[StoredResult] = []
    while end is not None:
        chain.append(by_hash[end])
        end = by_hash[end].result.previous
    return tuple(reversed(chain))


def _with_following(plan: StreamPlan, then: StreamPlan | None, position: int) -> Iterator[tuple[Segment, Step | None]]:
    """Yield each segment of *plan* from *position* on, with the step that comes after it."""
    last = Step(then, then.segments[0]) if then else None
    steps = [*(Step(plan, segment) for segment in plan.segments[position + 1 :]), last]
    yield from zip(plan.segments[position:], steps, strict=True)


def _run_segment(
    shop: Workshop,
    step: Step,
    *,
    following: Step | None,
    fingerprints: Iterator[Fingerprint],
    chain: Sequence[StoredResult],
    done: Sequence[MeasuredPass],
    states: StreamStates,
) -> StoredResult:
    """Evaluate *step*, and store its result. First the state is saved, so that a kill loses only one segment.

    Args:
        shop: What streams share.
        step: The segment to evaluate.
        following: The segment to open meanwhile.
        fingerprints: Fingerprints of this segment, from its shards when they are opened, and of later segments.
        chain: The results of the segments before.
        done: Finished parts of this segment.
        states: The saved states.
    """
    evaluator, inputs, started_at = shop.evaluator(), shop.inputs, utc_now()
    previous = chain[-1].sha256 if chain else None
    with shop.segments.opened(step, then=following) as opened:
        inputs.note_opened(step.segment.cells, opened)
        present = next(fingerprints)
        what = ", ".join(dict.fromkeys(cell.key for cell in step.segment.cells[:3]))
        measurement = evaluator.evaluate(
            opened,
            Progress(shop.tell, what=what, total=len(opened.order)).advance,
            segment=(step.plan.key.key, step.segment.position),
            done=done,
            checkpoint=_make_checkpoint(shop, states, present.sha256, previous, len(done)),
        )
    if num_nonfinite := measurement.measured.counters["num_nonfinite_batches"]:
        batches = f"{num_nonfinite:,} of {count_of(len(measurement.measured.collected.batches), 'batch')}"
        shop.tell(f"{what}: found NaN or infinite logits{evaluator.place} in {batches}")
    goes_on = step.segment is not step.plan.segments[-1]
    stored = _store(
        shop,
        step,
        present,
        measurement,
        previous=previous,
        started_at=started_at,
        before=(lambda sha256: states.save(sha256, evaluator.state_dict())) if goes_on else lambda _: None,
    )
    states.keep_only([each.sha256 for each in (*chain, stored)[-NUM_KEPT:]] if goes_on else [])
    return stored


def _make_checkpoint(
    shop: Workshop, states: StreamStates, fingerprint: str, previous: str | None, num_done: int
) -> Checkpoint:
    """Return the checkpoint inside the segment with *fingerprint*, of which *num_done* parts are finished."""
    states.remove_within(fingerprint, previous, after=num_done)

    def save(number: int, part: MeasuredPass) -> None:
        states.save_within(fingerprint, previous, number, shop.evaluator().state_dict(), part)

    return Checkpoint(every=shop.inputs.machine.checkpoint_every, save=save)


def _store(
    shop: Workshop,
    step: Step,
    present: Fingerprint,
    measurement: Measurement,
    *,
    previous: str | None,
    started_at: str,
    before: Callable[[str], None],
) -> StoredResult:
    """Write predictions and result of a segment; *before* gets the hash of the result before it appears."""
    experiment = shop.inputs.experiment
    results = tuple(build_records(_subject(shop, step, present), measurement))
    rows: tuple[Evaluation, ...] = tuple(each.row for each in results)
    if shop.keeps_predictions:
        samples = {each.row.cell.key: each.samples for each in results}
        rows = _write_predictions(shop, step, rows, samples)
    result = Result(
        kind="evaluation",
        benchmark=experiment.benchmark.name,
        key=experiment.key_folder(step.plan.key),
        fingerprint=present.sha256,
        previous=previous,
        run_id=shop.run_id,
        started_at=started_at,
        finished_at=utc_now(),
        versions=software_versions(),
        evaluations=rows,
    )
    return store_result(experiment.results_folder, result, before=before)


def _write_predictions(
    shop: Workshop, step: Step, rows: Sequence[Evaluation], samples: dict[str, SamplePredictions]
) -> tuple[Evaluation, ...]:
    """Write the predictions for each sample, and return *rows* with the hash of their file."""
    experiment, data = shop.inputs.experiment, encode_predictions(samples)
    sha256 = hashlib.sha256(data).hexdigest()
    with_hash = tuple(row.with_samples(sha256) for row in rows)
    path = predictions_path(experiment.results_folder / experiment.key_folder(step.plan.key), with_hash[0])
    assert path is not None
    write_atomically(path, data)
    return with_hash


def _subject(shop: Workshop, step: Step, present: Fingerprint) -> Subject:
    """Return what is evaluated at *step*."""
    experiment, machine = shop.inputs.experiment, shop.inputs.machine
    spec = experiment.resolved.experiment
    return Subject(
        benchmark=experiment.benchmark.file,
        labels=experiment.labels,
        stream=step.plan.key.key,
        position=step.segment.position,
        visit=step.segment.visit,
        seed=step.plan.seed,
        fingerprint=present,
        model=ModelFacts.of(shop.inputs.model),
        method=spec.method_name,
        protocol=spec.protocol.name,
        subset=spec.subset.name if spec.subset else "all",
        settings=_recorded_settings(spec),
        batch_size=spec.batch_size,
        precision=spec.precision,
        compile=spec.compile,
        num_threads=machine.num_threads,
        streams_per_device=machine.streams_per_device,
    )


def _recorded_settings(experiment: Experiment) -> JsonObject:
    hyperparameters = experiment.configured_hyperparameters().model_dump(mode="json")
    return {**experiment.model_dump(mode="json"), "hyperparameters": hyperparameters}
